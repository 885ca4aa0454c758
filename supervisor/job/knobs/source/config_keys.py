"""Which keys of a config a script reads: ``cfg["train"].get("resume")`` is the key ``train.resume``, whatever the config is called there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from supervisor.job.knobs.source.declarations import literal
from supervisor.job.knobs.source.read_source import ScriptSource, SourceFile, called

_ROUNDS: Final = 3
# What makes plain data of a part of a config.
_CONVERTS: Final = frozenset({"dict", "to_container", "to_dict", "Namespace", "vars", "deepcopy", "copy"})
_TRAINER: Final = "Trainer"
_LIGHTNING: Final = frozenset({"lightning", "pytorch_lightning"})
_ACCUMULATE: Final = "accumulate_grad_batches"

_Chain = tuple[str, ...]
"""A name, and what is looked up below it."""


def absent_keys(source: ScriptSource, keys: Collection[str], flags: Collection[str]) -> Iterator[str]:
    """The keys that the source reads where they are there (``.get("resume")``) and that a config does not hold, by their dotted names.

    Args:
        source: the script.
        keys: the dotted keys of the config.
        flags: names of settings that are the command line's.
    """
    sections = {above for key in keys for above in _above(key)}
    tops = {key.partition(".")[0] for key in keys}
    for file in source.files:
        aliases = _aliases(file)
        optional: dict[_Chain, None] = {}
        holders: set[_Chain] = set()
        for node in file.nodes:
            if not isinstance(node, ast.expr):
                continue
            chain = _chain(node, aliases)
            if chain is None or len(chain) < 2:
                continue
            if chain[-1] in tops and chain[-1] not in flags:
                holders.add(chain[:-1])
            if _is_optional(node):
                optional[chain] = None
        for chain in optional:
            *above, last = chain
            section = next((s for i in range(1, len(above)) if (s := ".".join(above[i:])) in sections), None)
            key = f"{section}.{last}" if section is not None else last
            if (section is not None or tuple(above) in holders) and key not in keys and last not in flags:
                yield key


def spread_into_trainer(source: ScriptSource, keys: Collection[str]) -> str | None:
    """The section of a config whose keys are Lightning's Trainer's own (``Trainer(**cfg.trainer)``), if there is one alone."""
    if not _LIGHTNING & source.modules or any(
        value is False for value, _ in source.literals.get("automatic_optimization", ())
    ):
        return None  # Lightning refuses accumulation where a module steps by itself
    sections = {above for key in keys for above in _above(key)}
    names: set[str] = set()
    for file in source.files:
        aliases = _aliases(file)
        for node in file.calls:
            if called(node) == _TRAINER and not any(k.arg == _ACCUMULATE for k in node.keywords):
                spread = (k.value for k in node.keywords if k.arg is None)
                names |= {
                    chain[-1] for value in spread if (chain := _chain(_bare(value), aliases)) is not None
                }
    found = [s for s in sections if s.rpartition(".")[2] in names]
    return found[0] if len(found) == 1 else None


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


def _is_optional(node: ast.expr) -> bool:
    """Whether a key need not be there: nothing is taken in its place."""
    match node:
        case ast.Call(func=ast.Attribute(attr="get"), args=[_]):
            return True
        case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[_, default]):
            return literal(default) in {None, "", False}
        case ast.Call(func=ast.Name(id="getattr"), args=[_, _, default]):
            return literal(default) in {None, "", False}
        case _:
            return False
