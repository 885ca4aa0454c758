"""How long a job's process groups wait for a late rank, where it sets a longer timeout than PyTorch's default.

A script that gives its ranks two hours says that one may be silent for two hours. Found in what it hands to
``init_process_group`` and its like (read, never run), in flags, config keys and variables that are named so, and in its log.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from supervisor.job.arguments.assignments import Setting
from supervisor.job.knobs.places import ENV, Places, bare, is_argument
from supervisor.job.knobs.source.read_source import ScriptSource, called, leaf

NCCL_DEFAULT_TIMEOUT_S: Final = 600.0
"""NCCL's default (torch/distributed/constants.py, 2.2 and later); gloo's is 1800 s. What is shorter changes nothing."""
_GROUP: Final = frozenset(
    {"ddp", "dist", "distributed", "nccl", "gloo", "pg", "process", "group", "collective", "comm", "deepspeed", "c10d"}
)  # fmt: skip
# Timeouts of other things: a monitor's, a store's, an InfiniBand card's (an exponent).
_OTHERS: Final = frozenset(
    {"heartbeat", "ib", "rdzv", "rendezvous", "join", "store", "trace", "dump", "data"}
)
_SECONDS_A: Final = {
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
}
# A rank's log as it starts: ``TIMEOUT(ms): 3600000`` (c10d), ``ddp_timeout=7200,`` (printed arguments),
# ``distributed_timeout_minutes ........ 60`` (Megatron), ``timeout=datetime.timedelta(days=1, seconds=3600)``.
_LOG: Final = (
    rb"timeout ?\(ms\) ?[=:] ?(?P<ms>\d{1,15})"
    rb"|(?P<name>(?:ddp|dist|distributed|nccl|gloo|pg|process_group|collective)[a-z_]{0,24}timeout[a-z_]{0,12})"
    rb"['\"]?[ .:=]{1,80}(?P<number>\d{1,9}(?:\.\d{1,6})?)(?![\w.])"
    rb"|timeout['\"]?[=:] ?(?:datetime\.)?timedelta\((?:days=(?P<days>\d{1,6}))?,? ?(?:seconds=(?P<seconds>\d{1,9}))?"
)

# datetime.timedelta's arguments in their order, in seconds.
_UNITS: Final = {
    "days": 86_400.0, "seconds": 1.0, "microseconds": 1e-6, "milliseconds": 1e-3, "minutes": 60.0, "hours": 3600.0, "weeks": 604_800.0,
}  # fmt: skip
# Their time limit may stand without its name.
_GROUP_CALLS: Final = ("init_process_group", "new_group", "init_distributed")

Term: TypeAlias = tuple[float, float | str]
"""Seconds a unit, and how many: a number, or the name of the setting that holds it (a variable is ``env:NAME``)."""


def find_group_timeout(settings: Sequence[Setting], where: Places) -> float | None:
    """The longest timeout given to any process group, in seconds; None where none is longer than the default."""
    return longer_than_usual(max(_group_timeouts(settings, where), default=None))


def longer_than_usual(seconds: object) -> float | None:
    """`seconds` where it is a number above PyTorch's default."""
    number = _number(seconds)
    return number if number is not None and number > NCCL_DEFAULT_TIMEOUT_S else None


def timeout_in_log(data: bytes) -> float | None:
    """The same from a part of a log."""
    found = []
    for match in re.finditer(_LOG, data, re.IGNORECASE) if b"imeout" in data or b"IMEOUT" in data else ():
        if match["ms"]:
            found.append(int(match["ms"]) / 1000)
        elif match["name"]:
            unit = _unit(match["name"].decode())
            found += [float(match["number"]) * unit] if unit is not None else []
        else:
            found.append(86_400.0 * int(match["days"] or 0) + int(match["seconds"] or 0))
    return longer_than_usual(max(found, default=None))


def _group_timeouts(settings: Sequence[Setting], where: Places) -> Iterator[float]:
    for setting in settings:
        if (unit := _unit(setting.name)) is not None and (number := _number(setting.value)) is not None:
            yield unit * number
    given = {_plain(setting.name) for setting in settings}
    for name in (*where.names(), *(f"{ENV}{variable}" for variable in where.env)):
        # What the command line says comes before a flag's default.
        if (unit := _unit(bare(name))) is None or (is_argument(name) and _plain(name) in given):
            continue
        if (number := _number(where.value(name))) is not None:
            yield unit * number
    for file in where.source.files:
        timeouts, limits = time_limits(file.nodes)
        for name, amount in limits:
            unit, number = _unit(name), _value(amount, settings, where)
            if unit is not None and number is not None:
                yield unit * number
        for terms in timeouts:
            parts = [(unit, _value(amount, settings, where)) for unit, amount in terms]
            known = [unit * number for unit, number in parts if number is not None]
            if len(known) == len(parts):
                yield sum(known)


def _value(amount: float | str, settings: Sequence[Setting], where: Places) -> float | None:
    """A number, or what a setting of this name is given."""
    if not isinstance(amount, str):
        return amount
    if amount.startswith(ENV):
        return _number(where.value(amount))
    spelt = {amount, *_spellings(amount, where.source)}
    given = [s.value for s in settings if _plain(s.name).rpartition(".")[2] in spelt]
    if given:
        return _number(given[-1])
    names = [name for name in where.names() if _plain(bare(name)).rpartition(".")[2] in spelt]
    return next((found for name in names if (found := _number(where.value(name))) is not None), None)


def _spellings(dest: str, source: ScriptSource) -> Iterator[str]:
    for flag in source.flags:
        if flag.dest == dest:
            yield from map(_plain, flag.names)


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("-", "_")


def _unit(name: str) -> float | None:
    """Seconds a unit of a setting that says how long process groups wait; None: it says something else."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    if "timeout" not in words or not _GROUP & set(words) or _OTHERS & set(words):
        return None
    usual = 60.0 if "deepspeed" in words else 1.0  # DEEPSPEED_TIMEOUT counts minutes (deepspeed/constants.py)
    return next((_SECONDS_A[word] for word in words if word in _SECONDS_A), usual)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < 1e15 else None


def time_limits(
    nodes: Sequence[ast.AST],
) -> tuple[tuple[tuple[Term, ...], ...], tuple[tuple[str, float | str], ...]]:
    """What calls are given as ``timeout``, also by way of a name or a parameter's default; and numbers under such a name."""
    named: dict[str, ast.expr] = {}
    calls: list[ast.Call] = []
    for node in nodes:
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
        if called(call) in _GROUP_CALLS:
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
        case ast.Call() if called(node) == "timedelta":
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
            return leaf(node)
