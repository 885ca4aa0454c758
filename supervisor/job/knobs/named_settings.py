"""The settings of a script's batch: those that a person named, else those of the command line whose names say what they hold.

A name that may mean two things is left open, with what would decide it: a declaration, an answer, or the first step that is measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.arguments.command_line import settings_of
from supervisor.job.knobs.conventions import Convention, find_convention
from supervisor.job.knobs.resume_settings import with_resume
from supervisor.job.knobs.set_batch import as_number, number_of
from supervisor.job.knobs.setting_names import (
    BatchName,
    Place,
    Places,
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
_OFF: Final = frozenset({"false", "no", "0", "none", ""})
_DEEPSPEED: Final = re.compile(r"deepspeed|(^|\W|_)ds_?config", re.IGNORECASE)
# What a dynamic batch is filled up to, in place of a number of samples.
_UNITS: Final = frozenset({"frame", "token", "second", "dynamic", "bin", "numel"})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting of the command line that is a number by its value and by its name a batch, of which `scope` is what that counts.

    `scope` None: it is an accumulation.
    """

    name: str
    scope: KnobScope | None
    number: int


@dataclass(frozen=True, slots=True)
class NoPlanError(Exception):
    """No plan, and why; `help`: what would decide it; `batch`: the setting, where it is known."""

    why: str
    help: str = ""
    batch: str | None = None


def scope_by_name(name: str) -> KnobScope | None:
    """What a batch of this name counts, as far as that says it; None where it is no batch, or another than training's."""
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
    elsewhere: Places | None = None,
    world: int | None = None,
) -> Knobs:
    """The settings of a script's batch and resume: as declared, else those of the command line whose names are conventional.

    Args:
        args: what follows the script.
        declared: what a person named; each name given there is taken as it is.
        elsewhere: the files and variables that declared names are read from.
        world: ranks in all, if known.
    """
    where, given = elsewhere or Places(), declared or Knobs()
    own = args[where.args_at :]
    row = find_convention([s.name for s in settings_of(own)], where.program)
    found = _candidates(own, row)
    try:
        if given.batch is not None:
            knobs = _declared(given.batch, given, found, args, where)
        else:
            knobs = _Conventional(own, row, found, given, world).knobs()
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
    """Why a smaller micro-batch would change what is learned, by a setting of its library; empty: no such setting is on."""
    reasons = dict(row.unsafe) if row is not None else {}
    given = (s for s in settings_of(own) if (s.value or "true").lower() not in _OFF)
    return next((reasons[name] for s in given if (name := last_part(s.name)) in reasons), "")


def _candidates(own: Sequence[str], row: Convention | None) -> list[Candidate]:
    """Each setting that may be the batch's or the accumulation's; of one that is given twice the last counts."""
    found: dict[str, Candidate] = {}
    for setting in settings_of(own):
        name, number = setting.name, as_number(setting.value)
        scope = scope_by_name(name)
        if row is not None and last_part(name) in row.micro:
            scope = KnobScope.PER_RANK
        if number is not None and (scope is not None or is_accumulation(name)):
            found[plain(name)] = Candidate(name, scope, number)
    return list(found.values())


def _declared(
    batch: str, given: Knobs, found: Sequence[Candidate], args: Sequence[str], where: Places
) -> Knobs:
    """What a person named, completed: a scope from the name, an accumulation or a total that is the only one given."""
    scope = given.batch_scope
    if scope is KnobScope.UNKNOWN:
        scope = scope_by_name(batch) or scope
    steps = [c.name for c in found if c.scope is None and c.name != batch]
    accumulation = given.accumulation or (steps[0] if len(steps) == 1 else None)
    totals = (c.name for c in found if c.scope is KnobScope.GLOBAL and c.name != batch)
    derived = scope is KnobScope.PER_RANK and accumulation is None
    total = (given.global_batch or next(totals, None)) if derived else None
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
    args: Sequence[str], where: Places, *wanted: tuple[str, str | None]
) -> tuple[FoundNumber, ...]:
    """The number that each setting holds now, and where it stands; ``named``: nowhere that can be read."""
    found = []
    for what, name in wanted:
        if name is not None:
            number = number_of(args, name, where)
            found.append(FoundNumber(what, number, "named" if number is None else _place(name)))
    return tuple(found)


def _place(name: str) -> str:
    match place_of(name):
        case Place.ARGUMENT:
            return ARGV
        case Place.ENVIRONMENT:
            return f"variable {bare(name)}"
        case Place.FILE:
            return config_file(name.partition("#")[0])


@dataclass(frozen=True, slots=True)
class _Conventional:
    """One search among the settings of a command line, whose names alone must say what they hold."""

    own: Sequence[str]
    row: Convention | None
    found: Sequence[Candidate]
    given: Knobs
    world: int | None

    def of(self, *scopes: KnobScope | None) -> list[Candidate]:
        """The settings that count one of these, in that order; None: the accumulations."""
        return [c for scope in scopes for c in self.found if c.scope is scope]

    def knobs(self) -> Knobs:
        """The settings that make up the batch.

        Raises:
            NoPlanError: names and values leave it open.
        """
        micro = self._micro()
        self._require_safe(micro)
        if micro.number == 1 and micro.scope is not KnobScope.GLOBAL:
            raise NoPlanError(
                f"{micro.name} is 1 already: no smaller micro-batch is possible", "", micro.name
            )
        if self.given.accumulation is not None:
            return self._pair(micro, self.given.accumulation, None)
        steps = self.of(None)
        if len(steps) > 1:
            what = f"which is the accumulation is not clear: {steps[0].name} or {steps[1].name}"
            raise _which(what, "--accumulation-knob", steps)
        total = self._total(micro)
        if steps:
            self._require_product(micro, steps[0], total)
            return self._pair(micro, steps[0].name, steps[0].number)
        if total is None:
            raise self._no_accumulation(micro)
        numbers = FoundNumber("micro", micro.number, ARGV), FoundNumber("total", total.number, ARGV)
        return Knobs(micro.name, KnobScope.PER_RANK, global_batch=total.name, found=numbers)

    def _micro(self) -> Candidate:
        """The setting that holds the micro-batch, else the batch that an accumulation cuts."""
        for batches in (self.of(KnobScope.PER_RANK), self.of(KnobScope.UNKNOWN, KnobScope.PER_NODE)):
            training = [c for c in batches if "train" in words_of(c.name)]
            left = training if len(training) == 1 else batches
            if len(left) > 1:
                names = " and ".join(f"{c.name} ({c.number})" for c in left)
                what = f"which is the micro-batch is not clear: {names}"
                raise _which(what, "--batch-knob", left)
            if left:
                return left[0]
        totals = self.of(KnobScope.GLOBAL)
        if len(totals) == 1:
            return totals[0]
        raise NoPlanError("no batch setting is declared, and none with a conventional name is given", DECLARE)

    def _require_safe(self, micro: Candidate) -> None:
        """Refuses what makes the training depend on the micro-batch, or another place that may hold its number."""
        if why := _unsafe(self.own, self.row):
            raise NoPlanError(why, "", micro.name)
        for setting in settings_of(self.own):
            name, value = setting.name, (setting.value or "true").lower()
            words = set(words_of(name))
            if _DEEPSPEED.search(name) and value.endswith(".json"):
                raise NoPlanError(
                    f"{setting.value} may hold the number of {micro.name} too", DECLARE, micro.name
                )
            if words >= {"batch", "type"} and value.rstrip("s") in _UNITS:
                raise NoPlanError(f"batches are not counted in samples ({name} is {value})", "", micro.name)
            if "dynamic" in words and words & {"batch", "batching", "batches"} and value not in _OFF:
                raise NoPlanError(f"batches are dynamic ({name})", "--batch-knob FLAG", micro.name)

    def _total(self, micro: Candidate) -> Candidate | None:
        """The global batch beside a rank's own: named so, or as the micro-batch but for that one word."""
        if micro.scope is not KnobScope.PER_RANK:
            return None
        words = set(words_of(micro.name))
        whole = [
            c
            for c in self.of(KnobScope.UNKNOWN)
            if "micro" in words and set(words_of(c.name)) == words - {"micro"}
        ]
        totals = self.of(KnobScope.GLOBAL) or whole
        if len(totals) > 1:
            what = f"which is the global batch is not clear: {totals[0].name} or {totals[1].name}"
            raise NoPlanError(what, "leave one of them out", micro.name)
        return totals[0] if totals else None

    def _require_product(self, micro: Candidate, steps: Candidate, total: Candidate | None) -> None:
        """Micro-batch, accumulation and total are all given: they must agree, or which one the script drops is not known."""
        if total is not None and micro.number * steps.number * (self.world or 0) != total.number:
            product = f"{micro.name} {micro.number} × {steps.name} {steps.number} × {self.world or '?'} ranks"
            why = f"{product} is not {total.name} {total.number}"
            raise NoPlanError(why, "leave one of the three out", micro.name)

    def _pair(self, micro: Candidate, steps: str, number: int | None) -> Knobs:
        """Two factors of the global batch; of a total the accumulation cuts, the accumulation alone changes."""
        scope = self.given.batch_scope
        if scope is KnobScope.UNKNOWN:
            scope = micro.scope or scope
        by_framework = self.row is not None and self.row.accumulation == last_part(steps)
        if scope is KnobScope.UNKNOWN and not by_framework:
            what = f"what {micro.name} counts is not said by its name"
            ranks = "" if self.world else " --nproc-per-node N"
            raise NoPlanError(what, _EITHER_SCOPE + ranks, micro.name)
        where = ARGV if number is not None else "named"
        return Knobs(
            batch=micro.name,
            batch_scope=scope,
            accumulation=steps,
            paired=scope is not KnobScope.GLOBAL,
            counts=self.given.counts,
            found=(FoundNumber("micro", micro.number, ARGV), FoundNumber("accumulation", number, where)),
        )

    def _no_accumulation(self, batch: Candidate) -> NoPlanError:
        """Without one the global batch can only shrink, and by how much is not known of a batch that is nobody's by its name."""
        why = f"no accumulation is given beside {batch.name}"
        known = self.given.batch_scope is not KnobScope.UNKNOWN or batch.scope is not KnobScope.UNKNOWN
        if known or self.world == 1:
            return NoPlanError(f"{why} ({SMALLER_GLOBAL})", SMALLER_GLOBAL, batch.name)
        help_ = f"{SMALLER_GLOBAL} with {_EITHER_SCOPE}"
        return NoPlanError(f"{why} ({help_})", help_, batch.name)


def _which(why: str, flag: str, settings: Sequence[Candidate]) -> NoPlanError:
    """A refusal because one of several settings is meant."""
    return NoPlanError(why, ", or ".join(f"{flag} {one.name}" for one in settings))
