"""What a training script's source says of its own flags: parsed, never run.

Only ``parser.add_argument("--name", ...)`` calls with literal arguments are read, reads of environment
variables by a literal name, where a batch size goes when it reaches a DataLoader, and how long process groups wait.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import Final, TypeAlias

# A training script is some thousand lines; parsing more than this would cost a visible pause at start.
MAX_SOURCE_CHARS: Final = 2_000_000
_TELLING: Final = ("TrainingArguments", "HfArgumentParser")
# datetime.timedelta's arguments in their order, in seconds.
_UNITS: Final = {
    "days": 86_400.0, "seconds": 1.0, "microseconds": 1e-6, "milliseconds": 1e-3, "minutes": 60.0, "hours": 3600.0, "weeks": 604_800.0,
}  # fmt: skip
# Their time limit may stand without its name.
_GROUP_CALLS: Final = ("init_process_group", "new_group", "init_distributed")

Term: TypeAlias = tuple[float, float | str]
"""Seconds a unit, and how many: a number, or the name of the setting that holds it (a variable is ``env:NAME``)."""


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
    `timeouts`: each ``timeout=timedelta(…)`` that it hands to a call, as terms to be added up; `limits`: numbers that it hands
    over under a name, as (name, number or setting).
    """

    flags: tuple[ScriptFlag, ...] = ()
    undivided: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset()
    variables: tuple[tuple[str, int | float | str | bool | None], ...] = ()
    words: frozenset[str] = frozenset()
    timeouts: tuple[tuple[Term, ...], ...] = ()
    limits: tuple[tuple[str, float | str], ...] = ()

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
    timeouts, limits = _time_limits(tree)
    return ScriptSource(
        tuple(flags),
        frozenset(undivided),
        frozenset(divided),
        tuple(variables.items()),
        frozenset(words),
        timeouts,
        limits,
    )


def _time_limits(
    tree: ast.AST,
) -> tuple[tuple[tuple[Term, ...], ...], tuple[tuple[str, float | str], ...]]:
    """What calls are given as ``timeout``, also by way of a name or a parameter's default; and numbers under such a name."""
    named: dict[str, ast.expr] = {}
    calls: list[ast.Call] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                named[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                named[name] = value
            case ast.arguments():
                given = [*node.posonlyargs, *node.args]
                named |= {
                    a.arg: d
                    for a, d in zip(given[len(given) - len(node.defaults) :], node.defaults, strict=True)
                }
            case ast.Call():
                calls.append(node)
            case _:
                pass
    spans: list[tuple[Term, ...]] = []
    limits: list[tuple[str, float | str]] = []
    for call in calls:
        handed = [(k.arg, k.value) for k in call.keywords if k.arg is not None and "timeout" in k.arg.lower()]
        if _called(call) in _GROUP_CALLS:
            handed += [("timeout", value) for value in call.args]
        for name, value in handed:
            meant = named.get(value.id, value) if isinstance(value, ast.Name) else value
            if terms := _span(meant):
                spans.append(terms)
            elif (amount := _amount(meant)) is not None:
                limits.append((name, amount))
    return tuple(spans), tuple(limits)


def _span(node: ast.expr) -> tuple[Term, ...]:
    """``timedelta(hours=1, minutes=args.more)`` as its terms; empty where it is none, or not to be read."""
    match node:
        case ast.Attribute(value=ast.Name(id="timedelta") | ast.Attribute(attr="timedelta"), attr="max"):
            return ((86_400.0, 999_999_999.0),)
        case ast.Call() if _called(node) == "timedelta":
            given = [*zip(_UNITS, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
            terms = [(_UNITS.get(unit or ""), _amount(value)) for unit, value in given]
            known = tuple((unit, amount) for unit, amount in terms if unit is not None and amount is not None)
            return known if len(known) == len(terms) else ()
        case _:
            return ()


def _amount(node: ast.expr) -> float | str | None:
    """A number, a product or sum of numbers, or the setting that holds one."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.BinOp(left=left, op=ast.Mult() | ast.Add() as op, right=right):
            one, other = _amount(left), _amount(right)
            if not isinstance(one, float) or not isinstance(other, float):
                return None
            return one * other if isinstance(op, ast.Mult) else one + other
        case ast.Call(func=ast.Name(id="float"), args=[value]):
            return _amount(value)
        case _:
            return _leaf(node)


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
