"""What a training script's source says of its own flags: parsed, never run.

Only ``parser.add_argument("--name", ...)`` calls with literal arguments are read, reads of environment
variables by a literal name, and where a batch size goes when it reaches a DataLoader.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import Final

# A training script is some thousand lines; parsing more than this would cost a visible pause at start.
MAX_SOURCE_CHARS: Final = 2_000_000
_TELLING: Final = ("TrainingArguments", "HfArgumentParser")


@dataclass(frozen=True, slots=True)
class ScriptFlag:
    """One flag a script declares. `default` and `choices` only where they are literals."""

    names: tuple[str, ...]
    dest: str
    default: int | float | str | bool | None
    is_switch: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A script's flags, and the attribute names that it hands undivided to a DataLoader as batch size.

    `variables`: environment variables that it reads, with their literal default if they have one. In the sets
    a variable is named ``env:NAME``. `words`: names and attributes of its code that speak of resuming, or of transformers.
    """

    flags: tuple[ScriptFlag, ...] = ()
    undivided: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset()
    variables: tuple[tuple[str, int | float | str | bool | None], ...] = ()
    words: frozenset[str] = frozenset()

    def flag(self, name: str) -> ScriptFlag | None:
        """The declared flag of this spelling."""
        return next((f for f in self.flags if name in f.names), None)

    def passes_undivided(self, dest: str) -> bool:
        """Whether `dest` reaches a DataLoader as it is, and is divided nowhere."""
        return dest in self.undivided and dest not in self.divided


def scan_source(text: str | None) -> ScriptSource:
    """Reads a script's text; anything that is not Python is simply unknown."""
    if not text or len(text) > MAX_SOURCE_CHARS:
        return ScriptSource()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ScriptSource()
    flags: list[ScriptFlag] = []
    undivided: set[str] = set()
    divided: set[str] = set()
    aliases: dict[str, str] = {}
    variables: dict[str, int | float | str | bool | None] = {}
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            word = node.id if isinstance(node, ast.Name) else node.attr
            if "resume" in word or word.endswith(_TELLING):
                words.add(word)
        if isinstance(node, ast.Call | ast.Subscript):
            read = _variable(node)
            if read:
                variables.setdefault(*read)
        if isinstance(node, ast.Call):
            flag = _declared(node)
            if flag:
                flags.append(flag)
        elif (
            isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ):
            source = _leaf(node.value)
            if source and source != node.targets[0].id and not isinstance(node.value, ast.Name):
                aliases[node.targets[0].id] = source
    for node in ast.walk(tree):
        match node:
            case ast.Call() if _called(node).endswith("DataLoader"):
                value = next((k.value for k in node.keywords if k.arg == "batch_size"), None)
                value = value or (node.args[1] if len(node.args) > 1 else None)
                leaf = _leaf(value)
                if leaf:
                    undivided.add(aliases.get(leaf, leaf))
            case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv()):
                divided.update(aliases.get(leaf, leaf) for leaf in _leaves(left))
            case ast.AugAssign(target=target, op=ast.Div() | ast.FloorDiv()):
                divided.update(aliases.get(leaf, leaf) for leaf in _leaves(target))
            case _:
                pass
    return ScriptSource(
        tuple(flags), frozenset(undivided), frozenset(divided), tuple(variables.items()), frozenset(words)
    )


def _variable(node: ast.expr) -> tuple[str, int | float | str | bool | None] | None:
    """The environment variable that an expression reads, and its literal default."""
    match node:
        case ast.Subscript(value=holder, slice=ast.Constant(value=str() as name)) if _is_environ(holder):
            return name, None
        case ast.Call(
            func=ast.Attribute(value=holder, attr="get"), args=[ast.Constant(value=str() as name), *rest]
        ) if _is_environ(holder):
            return name, _literal(rest[0]) if rest else None
        case ast.Call(args=[ast.Constant(value=str() as name), *rest]) if _called(node) == "getenv":
            return name, _literal(rest[0]) if rest else None
        case _:
            return None


def _is_environ(node: ast.expr) -> bool:
    match node:
        case ast.Name(id="environ") | ast.Attribute(attr="environ"):
            return True
        case _:
            return False


def _declared(call: ast.Call) -> ScriptFlag | None:
    if not _called(call).endswith("add_argument"):
        return None
    names = tuple(a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
    long = [n for n in names if n.startswith("--")]
    if not long:
        return None
    given = {k.arg: k.value for k in call.keywords if k.arg}
    action = _literal(given.get("action"))
    dest = _literal(given.get("dest"))
    default = _literal(given.get("default"))
    choices = given.get("choices")
    listed = choices.elts if isinstance(choices, ast.List | ast.Tuple) else []
    return ScriptFlag(
        names=names,
        dest=dest if isinstance(dest, str) else long[0].removeprefix("--").replace("-", "_"),
        default=default,
        is_switch=action in {"store_true", "store_false"},
        choices=tuple(str(_literal(c)) for c in listed),
    )


def _literal(node: ast.expr | None) -> int | float | str | bool | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int | float | str | bool) else None


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _leaf(node: ast.expr | None) -> str | None:
    """``args.batch_size``, ``cfg["batch_size"]`` and ``batch_size`` all name ``batch_size``."""
    if isinstance(node, ast.Call | ast.Subscript) and (read := _variable(node)):
        return f"env:{read[0]}"
    match node:
        case ast.Call(func=ast.Name(id="int"), args=[value]):
            return _leaf(value)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str() as name), *_]):
            return name
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
        case _:
            return None


def _leaves(node: ast.expr) -> set[str]:
    return {leaf for inner in ast.walk(node) if isinstance(inner, ast.expr) and (leaf := _leaf(inner))}
