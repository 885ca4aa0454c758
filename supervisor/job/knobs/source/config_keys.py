"""Which keys of a config a script reads: ``cfg["train"].get("resume")`` is the key ``train.resume``, whatever the config is called there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from supervisor.job.knobs.source.declarations import Literal, literal
from supervisor.job.knobs.source.read_source import ScriptSource, SourceFile, called, leaf

_ROUNDS: Final = 3
# What makes plain data of a part of a config.
_CONVERTS: Final = frozenset({"dict", "to_container", "to_dict", "Namespace", "vars", "deepcopy", "copy"})
_TRAINER: Final = "Trainer"
_LIGHTNING: Final = frozenset({"lightning", "pytorch_lightning"})
# The accumulation of what takes it, where nobody names it.
_ACCUMULATIONS: Final = {
    _TRAINER: "accumulate_grad_batches",
    "TrainingArguments": "gradient_accumulation_steps",
    "Seq2SeqTrainingArguments": "gradient_accumulation_steps",
}

_Chain = tuple[str, ...]
"""A name, and what is looked up below it."""


def absent_keys(source: ScriptSource, keys: Collection[str]) -> Iterator[tuple[str, Literal]]:
    """The keys that a config may hold and does not, by their dotted names, with what stands in their place.

    The source reads them where they are there (``.get("resume")``), or a class that is made of a section has such fields (``Config(**section)``).

    Args:
        source: the script.
        keys: the dotted keys of the config.
    """
    yield from _absent_reads(source, keys, {flag.dest for flag in source.flags})
    yield from _absent_fields(source, keys)


def _absent_fields(source: ScriptSource, keys: Collection[str]) -> Iterator[tuple[str, Literal]]:
    classes = {n.name: n for file in source.files for n in file.nodes if isinstance(n, ast.ClassDef)}
    filled = {called(n) for f in source.files for n in f.calls if any(k.arg is None for k in n.keywords)} & {
        *classes
    }
    for name in sorted(filled):
        fields = _fields(name, classes, 0)
        for section in sorted({"", *(above for key in keys for above in _above(key))}):
            prefix = f"{section}." if section else ""
            held = {key.removeprefix(prefix).partition(".")[0] for key in keys if key.startswith(prefix)}
            if len(held) > 1 and held <= {*fields}:
                yield from ((prefix + f, default) for f, default in fields.items() if f not in held)


def _fields(name: str, classes: Mapping[str, ast.ClassDef], depth: int) -> dict[str, Literal]:
    """The fields of a class and of those that it is derived from, with their constant defaults."""
    found: dict[str, Literal] = {}
    node = classes.get(name)
    for base in node.bases if node is not None and depth < _ROUNDS else ():
        found |= _fields(leaf(base) or "", classes, depth + 1)
    for item in node.body if node is not None else ():
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            value = item.value
            if isinstance(value, ast.Call):
                value = next((k.value for k in value.keywords if k.arg == "default"), None)
            found[item.target.id] = literal(value)
    return found


def _absent_reads(
    source: ScriptSource, keys: Collection[str], flags: Collection[str]
) -> Iterator[tuple[str, Literal]]:
    sections = {above for key in keys for above in _above(key)}
    tops = {key.partition(".")[0] for key in keys}
    for file in source.files:
        aliases = _aliases(file)
        optional: dict[_Chain, Literal] = {}
        holders: set[_Chain] = set()
        for node in file.nodes:
            if not isinstance(node, ast.expr):
                continue
            chain = _chain(node, aliases)
            if chain is None or len(chain) < 2:
                continue
            if chain[-1] in tops and chain[-1] not in flags:
                holders.add(chain[:-1])
            if (default := _default(node)) is not None:
                optional[chain] = default[0]
        for chain, instead in optional.items():
            *above, last = chain
            section = next((s for i in range(1, len(above)) if (s := ".".join(above[i:])) in sections), None)
            key = f"{section}.{last}" if section is not None else last
            if (section is not None or tuple(above) in holders) and key not in keys and last not in flags:
                yield key, instead


def section_of_framework(source: ScriptSource, keys: Collection[str]) -> tuple[str, str] | None:
    """The section of a config whose keys are a framework's own (``Trainer(**cfg.trainer)``), if there is one alone, and its accumulation."""
    found = [
        (section, _ACCUMULATIONS[name])
        for name in _ACCUMULATIONS
        if name != _TRAINER or (_LIGHTNING & source.modules and not steps_by_itself(source))
        if (section := _spread_into(source, keys, name)) is not None
    ]
    return found[0] if len(found) == 1 else None


def steps_by_itself(source: ScriptSource, *, alone: bool = False) -> bool:
    """Whether a Lightning module steps its optimizers itself, and is the only one if `alone`: Lightning then refuses to accumulate."""
    modules = [name for name, bases in source.bases().items() if "LightningModule" in bases]
    by_itself = any(value is False for value, _ in source.literals.get("automatic_optimization", ()))
    return by_itself and (not alone or len(modules) == 1)


def _spread_into(source: ScriptSource, keys: Collection[str], name: str) -> str | None:
    sections = {above for key in keys for above in _above(key)}
    names: set[str] = set()
    for file in source.files:
        aliases = _aliases(file)
        for node in file.calls:
            if called(node) == name and not any(k.arg == _ACCUMULATIONS[name] for k in node.keywords):
                spread = (k.value for k in node.keywords if k.arg is None)
                names |= {
                    chain[-1] for value in spread if (chain := _chain(_bare(value), aliases)) is not None
                }
    sections_named = [s for s in sections if s.rpartition(".")[2] in names]
    return sections_named[0] if len(sections_named) == 1 else None


def _above(key: str) -> list[str]:
    parts = key.split(".")[:-1]
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _bare(node: ast.expr) -> ast.expr:
    """What is made plain data of: ``cfg.trainer`` of ``OmegaConf.to_container(cfg.trainer)``."""
    while isinstance(node, ast.Call) and called(node) in _CONVERTS:
        if node.args:
            node = node.args[0]
        elif isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            break
    return node


def _aliases(file: SourceFile) -> dict[str, _Chain]:
    """Names that stand for a part of something: ``train_cfg = cfg["train"]``."""
    found: dict[str, _Chain] = {}
    for node in file.nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                chain = _chain(_bare(value), {})
                if chain is not None and len(chain) > 1 and chain[0] != name:
                    found.setdefault(name, chain)
            case _:
                pass
    return found


def _chain(node: ast.expr, aliases: Mapping[str, _Chain]) -> _Chain | None:
    parts: list[str] = []
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=holder, attr=name):
                pass
            case ast.Subscript(value=holder, slice=ast.Constant(value=str() as name)):
                pass
            case ast.Call(
                func=ast.Attribute(value=holder, attr="get" | "pop"),
                args=[ast.Constant(value=str() as name), *_],
            ):
                pass
            case ast.Call(func=ast.Name(id="getattr"), args=[holder, ast.Constant(value=str() as name), *_]):
                pass
            case _:
                return None
        parts.append(name)
        node = holder
    root: _Chain = (node.id,)
    for _ in range(_ROUNDS):
        root = (*aliases[root[0]], *root[1:]) if root[0] in aliases else root
    return (*root, *reversed(parts))


def _default(node: ast.expr) -> tuple[Literal] | None:
    """What is taken in place of a key that need not be there; None: it must be, or that is no constant."""
    match node:
        case ast.Call(func=ast.Attribute(attr="get"), args=[_]):
            return (None,)
        case (
            ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[_, default])
            | ast.Call(func=ast.Name(id="getattr"), args=[_, _, default])
        ):
            value = literal(default)
            is_none = isinstance(default, ast.Constant) and default.value is None
            return (value,) if value is not None or is_none else None
        case _:
            return None
