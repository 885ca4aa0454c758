"""Whether a script's own conditions let a setting be larger: its assertions and the tests before its ``raise``.

Evaluated with three values: a comparison of what is not known is unknown. Only a condition that was safe before the change and is
not safe after it counts.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from supervisor.job.knobs.source.declarations import Literal, ScriptFlag, literal
from supervisor.job.knobs.source.read_source import Guards, ScriptSource, called, guarded, leaf, leaves

_RANKS: Final = frozenset(
    {"num_processes", "world_size", "get_world_size", "ddp_world_size", "n_gpu", "num_gpus"}
)


class Nothing:
    """None as a value, where None means unknown."""

    def __bool__(self) -> bool:
        return False


NOTHING = Nothing()
# What settings are for a command line, by name; one whose value is not known is left out.
Known = Mapping[str, Literal | Nothing]


def refuses(
    source: ScriptSource,
    dest: str,
    before: int,
    after: int,
    given: Mapping[str, str | None],
    world: int | None,
) -> str | None:
    """Where the script would refuse `dest` at its new value, though not at the present one; None where it would not.

    Args:
        source: the script.
        dest: the setting's name in the source.
        before: its present value.
        after: its new value.
        given: what the command line gives, by plain name; None is a switch.
        world: ranks, if known.
    """
    known = known_values(source, given)
    for demand in source.demands:
        if dest not in leaves(demand.test):
            continue
        if any(_switched_off(source, test, wanted, known) for test, wanted in demand.guards):
            continue
        values = [truth(demand.test, {**known, dest: number}, world) for number in (before, after)]
        safe = [v is demand.must_hold for v in values]
        if safe[0] and not safe[1]:
            return f"{demand.where}: {ast.unparse(demand.test)[:80]}"
        if values[0] is None and values[1] is not None and not safe[1]:
            return f"{demand.where}: {ast.unparse(demand.test)[:80]}"
    return None


_COUNTING: Final = frozenset({"print", "info", "log", "ceil", "floor", "round", "int", "float", "str", "write", "debug", "warning"})  # fmt: skip


def only_counted(source: ScriptSource, name: str, given: Mapping[str, str | None]) -> str | None:
    """Where a script with its own loop reads an accumulation, if all that it does with it for this command line is to reckon and to print.

    `len(loader) / steps`, `batch * world * steps` and the schedule's length accumulate nothing; a remainder, a comparison, a loss that
    is divided, or the number handed on to anything does, in a branch that the command line does not switch off.
    """
    if "backward" not in source.used or "deepspeed" in source.modules:
        return None
    first: str | None = None
    known = known_values(source, given)
    for file in source.files:
        off = _switched_off_nodes(source, file.tree, known)
        open_: list[tuple[ast.AST, bool]] = [(file.tree, False)]
        while open_:
            node, harmless = open_.pop()
            of_loss = isinstance(node, ast.BinOp) and _of_loss(node, name)
            if of_loss or _is_read(node, name):
                if (of_loss or not harmless) and id(node) not in off:
                    return None
                first = first or f"{file.path or 'the script'}:{getattr(node, 'lineno', 0)}"
                continue
            open_ += [(child, _reckons(node, child, harmless)) for child in ast.iter_child_nodes(node)]
    return first


def cleared_before_backward(source: ScriptSource) -> str | None:
    """Where a loop under accelerate's ``accumulate`` calls ``zero_grad()`` before the backward of the same micro-batch.

    accelerate lets the call through on the micro-batch that steps, so that it drops the gradients of all before it.
    """
    for file in source.files:
        for node in file.nodes:
            if not isinstance(node, ast.With) or not any(
                isinstance(i.context_expr, ast.Call) and called(i.context_expr) == "accumulate"
                for i in node.items
            ):
                continue
            lines = {
                name: s.lineno
                for s in reversed(node.body)
                for name in ("zero_grad", "backward")
                if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and called(s.value) == name
            }
            if "zero_grad" in lines and lines["zero_grad"] < lines.get("backward", 0):
                return f"{file.path or 'the script'}:{lines['zero_grad']}"
    return None


def _switched_off_nodes(source: ScriptSource, tree: ast.Module, known: Known) -> set[int]:
    """Nodes in branches, and operands of ``and`` and ``or``, that the command line is known to switch off, by identity."""
    seen: dict[Guards, bool] = {}
    off: set[int] = set()
    for node, guards, _ in guarded(tree):
        if guards not in seen:
            seen[guards] = any(_switched_off(source, test, wanted, known) for test, wanted in guards)
        if seen[guards]:
            off.add(id(node))
        elif isinstance(node, ast.BoolOp) and _settles(node, known):
            off |= {id(n) for n in ast.walk(node)}
    return off


def _settles(node: ast.BoolOp, known: Known) -> bool:
    """Whether one operand alone makes the result, so that the others say nothing: ``args.logging and i % args.steps == 0`` without logging."""
    decides = not isinstance(node.op, ast.And)
    return any(truth(value, known, None) is decides for value in node.values)


def _is_read(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.expr) or (leaf(node) or "").lower() != name:
        return False
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _of_loss(node: ast.BinOp, name: str) -> bool:
    """Whether a loss is divided by the name, or multiplied with something of it."""
    names = {n.lower() for n in leaves(node)}
    return name in names and any("loss" in n for n in names)


def _reckons(node: ast.AST, child: ast.AST, inside: bool) -> bool:
    """Whether what stands at `child` of `node` is only reckoned with or printed."""
    match node:
        case ast.FormattedValue() | ast.BinOp(op=ast.Mult() | ast.Div() | ast.FloorDiv()):
            return True
        case ast.Call():
            return called(node) in _COUNTING and (inside or child in node.args)
        case ast.JoinedStr() | ast.Tuple() | ast.IfExp() | ast.UnaryOp():
            return inside
        case _:
            return False


def _switched_off(source: ScriptSource, test: ast.expr, wanted: bool, known: Known) -> bool:
    """Whether a condition around a demand is known to be the other way; what it is computed from is followed once."""
    value = truth(test, known, None)
    name = leaf(test)
    if value is None and name is not None:
        values = {truth(expression, known, None) for expression in source.computed.get(name, ())}
        value = values.pop() if len(values) == 1 else None
    return value is not None and value is not wanted


def known_values(source: ScriptSource, given: Mapping[str, str | None]) -> dict[str, Literal | Nothing]:
    """What each setting is: as given, else its default; a setting whose default is computed is left out."""
    known: dict[str, Literal | Nothing] = {}
    for flag in source.flags:  # the script's own come first
        if flag.default_known and not flag.required:
            known.setdefault(flag.dest, _default_of(flag))
    for flag in source.flags:
        for name in flag.names:
            plain = name.lstrip("-").replace("-", "_")
            if plain in given:
                value = given[plain]
                known[flag.dest] = True if value is None else _number(value)
    for plain, value in given.items():
        known.setdefault(plain, True if value is None else _number(value))
    return known


def _default_of(flag: ScriptFlag) -> Literal | Nothing:
    if flag.default is None:
        return False if flag.is_switch else NOTHING
    return flag.default


def _number(text: str) -> Literal | Nothing:
    if text.lower() in {"true", "yes", "false", "no"}:
        return text.lower() in {"true", "yes"}
    if text.lower() in {"none", "null", ""}:
        return NOTHING
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def truth(node: ast.expr, known: Known, world: int | None) -> bool | None:
    """True, False, or None: unknown."""
    match node:
        case ast.BoolOp(op=op, values=values):
            parts = [truth(v, known, world) for v in values]
            if isinstance(op, ast.And):
                return False if False in parts else None if None in parts else True
            return True if True in parts else None if None in parts else False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = truth(operand, known, world)
            return None if inner is None else not inner
        case ast.Compare(
            left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]
        ):
            value = _value(left, known, world)
            return None if value is None else (value is NOTHING) == isinstance(op, ast.Is)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            first, second = _value(left, known, world), _value(right, known, world)
            if first is None or second is None:
                return None
            return _compared(op, first, second)
        case _:
            value = _value(node, known, world)
            return None if value is None else bool(value)


def _value(node: ast.expr, known: Known, world: int | None) -> Literal | Nothing:
    constant = literal(node)
    if constant is not None:
        return constant
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        first, second = _value(node.left, known, world), _value(node.right, known, world)
        if isinstance(first, int) and isinstance(second, int) and second:
            return first % second
        return None
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"lower", "strip"}
        and not node.args
    ):
        text = _value(node.func.value, known, world)
        return getattr(text, node.func.attr)() if isinstance(text, str) else None
    name = leaf(node)
    if name in _RANKS:
        return world
    return known.get(name) if name is not None else None


_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.In: lambda first, second: first in second,
    ast.NotIn: lambda first, second: first not in second,
}


def _compared(op: ast.cmpop, first: object, second: object) -> bool | None:
    compare = _COMPARISONS.get(type(op))
    try:
        return None if compare is None else bool(compare(first, second))
    except TypeError:
        return None
