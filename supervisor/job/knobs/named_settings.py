"""Finds a script's batch settings: those the user specified, or else those with unambiguous names on the command line.

An ambiguous name is reported with the ways to resolve it: a declaration, an answer, or the first measured step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.arguments.command_line import settings_of
from supervisor.job.knobs.conventions import Convention, find_convention
from supervisor.job.knobs.resume_settings import with_resume
from supervisor.job.knobs.set_batch import as_number, number_of
from supervisor.job.knobs.setting_names import (
    BatchName,
    Place,
    Scalar,
    bare,
    batch_name,
    config_file,
    is_accumulation,
    is_total,
    last_part,
    place_of,
    plain,
    words_of,
)
from supervisor.job.spec import FoundNumber, Knobs, KnobScope

SMALLER_GLOBAL: Final = "--allow-smaller-global"
ARGV: Final = "command line"
_EITHER_SCOPE: Final = "--batch-scope per_rank, or --batch-scope global"
DECLARE: Final = "--batch-knob FLAG --accumulation-knob FLAG"
# What a dynamic batch is filled up to, instead of a number of samples.
_UNITS: Final = frozenset({"frame", "token", "second", "dynamic", "bin", "numel"})
_OFF: Final = frozenset({"false", "no", "0", "none", ""})
_DEEPSPEED: Final = re.compile(r"deepspeed|(^|\W|_)ds_?config", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A numeric command-line setting whose name suggests a batch or accumulation. `scope` is what a batch counts, else None."""

    name: str
    scope: KnobScope | None
    number: int


@dataclass(frozen=True, slots=True)
class NoPlanError(Exception):
    """No plan is possible. `why` is the reason, `help` what would settle it, and `batch` the setting, if known."""

    why: str
    help: str = ""
    batch: str | None = None


def scope_by_name(name: str) -> KnobScope | None:
    """Return what a batch setting counts, judging by its name, or None if it is not the training batch."""
    if words_of(name) in {("batch", "size", "per", "node"), ("train", "batch", "size", "per", "node")}:
        return KnobScope.PER_NODE
    match batch_name(bare(name).lstrip("-+")):
        case BatchName.NONE | BatchName.ODD:
            return None
        case BatchName.ONE_RANK:
            return KnobScope.PER_RANK
        case _:
            return KnobScope.GLOBAL if is_total(bare(name)) else KnobScope.UNKNOWN


def find_knobs(
    args: Sequence[str],
    declared: Knobs | None = None,
    *,
    elsewhere: Mapping[str, Scalar] | None = None,
    world: int | None = None,
    program: str | None = None,
    args_at: int = 0,
) -> Knobs:
    """Find a script's batch and resume settings: as declared, or else by conventional names on the command line.

    Args:
        args: the words after the script.
        declared: the names given by the user, used as is.
        elsewhere: the values of declared names that are set in files and variables.
        world: the total number of ranks, if known.
        program: the console program or module.
        args_at: the index of the script's first argument.
    """
    where, given, own = elsewhere or {}, declared or Knobs(), args[args_at:]
    row = find_convention([s.name for s in settings_of(own)], program)
    found = _candidates(own)
    try:
        if given.batch is not None:
            knobs = _declared(given.batch, given, found, args, where)
        else:
            knobs = _conventional(own, row, found, given, world)
    except NoPlanError as no:
        scope = given.batch_scope
        if scope is KnobScope.UNKNOWN and no.batch is not None:
            scope = scope_by_name(no.batch) or scope
        knobs = Knobs(
            batch=no.batch, batch_scope=scope, accumulation=given.accumulation, refusal=no.why, help=no.help,
            found=_numbers_of(args, where, ("micro", no.batch)),
        )  # fmt: skip
    unsafe = _unsafe(own, row) if given.batch is None else ""
    return with_resume(own, row, given, replace(knobs, declared=given != Knobs(), unsafe=unsafe))


def _unsafe(own: Sequence[str], row: Convention | None) -> str:
    """Return why a library setting makes a smaller micro-batch change the training, or "" if no such setting is on."""
    reasons = dict(row.unsafe) if row is not None else {}
    given = (s for s in settings_of(own) if (s.value or "true").lower() not in _OFF)
    return next((reasons[name] for s in given if (name := last_part(s.name)) in reasons), "")


def _candidates(own: Sequence[str]) -> list[Candidate]:
    """Return settings that may control the batch or accumulation. If a setting is repeated, its last value counts."""
    found: dict[str, Candidate] = {}
    for setting in settings_of(own):
        name, number = setting.name, as_number(setting.value)
        scope = scope_by_name(name)
        if number is not None and (scope is not None or is_accumulation(name)):
            found[plain(name)] = Candidate(name, scope, number)
    return list(found.values())


def _declared(
    batch: str, given: Knobs, found: Sequence[Candidate], args: Sequence[str], where: Mapping[str, Scalar]
) -> Knobs:
    """Return the user's settings, adding the scope that the name implies and the accumulation or total, if unambiguous."""
    scope = given.batch_scope
    if scope is KnobScope.UNKNOWN:
        scope = scope_by_name(batch) or scope
    others = [c for c in found if c.name != batch]
    steps = [c.name for c in others if c.scope is None]
    accumulation = given.accumulation or (steps[0] if len(steps) == 1 else None)
    total = None
    if scope is KnobScope.PER_RANK and accumulation is None:
        named = (c.name for c in others if c.scope is KnobScope.GLOBAL)
        total = given.global_batch or next(named, None)
    return Knobs(
        batch=batch,
        batch_scope=scope,
        accumulation=accumulation,
        global_batch=total,
        counts=given.counts,
        paired=accumulation is not None and scope is KnobScope.UNKNOWN,
        found=_numbers_of(args, where, ("micro", batch), ("accumulation", accumulation), ("total", total)),
    )


def _numbers_of(
    args: Sequence[str], where: Mapping[str, Scalar], *wanted: tuple[str, str | None]
) -> tuple[FoundNumber, ...]:
    """Return each setting's current value and where it is set, or ``named`` if the value cannot be read."""
    found = []
    for what, name in wanted:
        number = number_of(args, name, where)
        if name is None:
            continue
        places = {
            Place.ARGUMENT: ARGV,
            Place.ENVIRONMENT: f"variable {bare(name)}",
            Place.FILE: config_file(name.partition("#")[0]),
        }
        found.append(FoundNumber(what, number, "named" if number is None else places[place_of(name)]))
    return tuple(found)


def _conventional(
    own: Sequence[str], row: Convention | None, found: Sequence[Candidate], given: Knobs, world: int | None
) -> Knobs:
    """Return the command-line settings that make up the batch, if their names alone are unambiguous.

    Raises:
        NoPlanError: the names and values do not settle the batch.
    """

    def of(*scopes: KnobScope | None) -> list[Candidate]:
        return [c for c in found if c.scope in scopes]

    own_scope = of(KnobScope.PER_RANK) or of(KnobScope.UNKNOWN, KnobScope.PER_NODE)
    micro = _one(own_scope or of(KnobScope.GLOBAL), "the micro-batch", "--batch-knob")
    if micro is None:
        raise NoPlanError("no batch setting is declared, and none with a conventional name is given", DECLARE)
    _require_safe(own, row, micro)
    if given.accumulation is not None:
        return _pair(row, given, world, micro, FoundNumber("accumulation", None, "named"), given.accumulation)
    steps = _one(of(None), "the accumulation", "--accumulation-knob", micro)
    total = None
    if micro.scope is KnobScope.PER_RANK:
        # Named as a total, or like the micro-batch except for the word "micro".
        words = set(words_of(micro.name))
        whole = [c for c in of(KnobScope.UNKNOWN) if {"micro", *words_of(c.name)} == words]
        total = _one(of(KnobScope.GLOBAL) or whole, "the global batch", "--batch-knob", micro)
    if steps is not None:
        if total is not None and micro.number * steps.number * (world or 0) != total.number:
            # The three contradict each other, and it is unknown which one the script ignores.
            product = f"{micro.name} {micro.number} × {steps.name} {steps.number} × {world or '?'} ranks"
            why = f"{product} is not {total.name} {total.number}"
            raise NoPlanError(why, "leave one of the three out", micro.name)
        return _pair(row, given, world, micro, FoundNumber("accumulation", steps.number, ARGV), steps.name)
    if total is not None:
        numbers = FoundNumber("micro", micro.number, ARGV), FoundNumber("total", total.number, ARGV)
        return Knobs(micro.name, KnobScope.PER_RANK, global_batch=total.name, found=numbers)
    # The global batch can only shrink, and by an unknown amount if the name does not give its scope.
    known = {given.batch_scope, micro.scope} != {KnobScope.UNKNOWN} or world == 1
    help_ = SMALLER_GLOBAL if known else f"{SMALLER_GLOBAL} with {_EITHER_SCOPE}"
    raise NoPlanError(f"no accumulation is given beside {micro.name} ({help_})", help_, micro.name)


def _one(
    settings: Sequence[Candidate], what: str, flag: str, micro: Candidate | None = None
) -> Candidate | None:
    """Return the only one of these settings, or None if there are none.

    Raises:
        NoPlanError: there is more than one.
    """
    if len(settings) > 1:
        names = " or ".join(f"{c.name} ({c.number})" for c in settings)
        help_ = ", or ".join(f"{flag} {c.name}" for c in settings)
        raise NoPlanError(f"which is {what} is not clear: {names}", help_, micro.name if micro else None)
    return next(iter(settings), None)


def _require_safe(own: Sequence[str], row: Convention | None, micro: Candidate) -> None:
    """Refuse to plan if settings tie the training to the micro-batch or if another source may also set the micro-batch."""
    if why := _unsafe(own, row):
        raise NoPlanError(why, "", micro.name)
    for setting in settings_of(own):
        name, value = setting.name, (setting.value or "true").lower()
        words = set(words_of(name))
        if _DEEPSPEED.search(name) and value.endswith(".json"):
            raise NoPlanError(f"{setting.value} may hold the number of {micro.name} too", DECLARE, micro.name)
        if words >= {"batch", "type"} and value.rstrip("s") in _UNITS:
            raise NoPlanError(f"batches are not counted in samples ({name} is {value})", "", micro.name)
        if "dynamic" in words and words & {"batch", "batching", "batches"} and value not in _OFF:
            raise NoPlanError(f"batches are dynamic ({name})", "--batch-knob FLAG", micro.name)
    if micro.number == 1 and micro.scope is not KnobScope.GLOBAL:
        raise NoPlanError(f"{micro.name} is 1 already: no smaller micro-batch is possible", "", micro.name)


def _pair(
    row: Convention | None, given: Knobs, world: int | None, micro: Candidate, steps: FoundNumber, name: str
) -> Knobs:
    """Return the batch and accumulation knobs as two factors. If accumulation splits a total, only `name` is changed."""
    scope = given.batch_scope
    if scope is KnobScope.UNKNOWN:
        scope = micro.scope or scope
    by_framework = row is not None and row.accumulation == last_part(name)
    if scope is KnobScope.UNKNOWN and not by_framework:
        ranks = "" if world else " --nproc-per-node N"
        what = f"what {micro.name} counts is not said by its name"
        raise NoPlanError(what, _EITHER_SCOPE + ranks, micro.name)
    return Knobs(
        batch=micro.name,
        batch_scope=scope,
        accumulation=name,
        paired=scope is not KnobScope.GLOBAL,
        counts=given.counts,
        found=(FoundNumber("micro", micro.number, ARGV), steps),
    )
