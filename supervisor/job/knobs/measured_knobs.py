"""Completes a job with what was measured: its settings and batch, or why the batch cannot be changed.

Declared values take precedence over measured ones, and measured values over conventions. If a declaration
contradicts the measured batch, the batch is left alone and the reason is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.job.batch import BatchSpec, factors
from supervisor.job.knobs.measured import DERIVED, NONE, UNSEEN, Derivation, MeasuredBatch, Why
from supervisor.job.knobs.resume_settings import knob_name
from supervisor.job.knobs.written_facts import Setting
from supervisor.job.spec import AccumulationCounts, EntryKind, FoundNumber, JobSpec, Knobs, KnobScope, Unread


@dataclass(frozen=True, slots=True)
class MeasuredSettings:
    """An attempt's measurements, as stored in the journal. Names are spelled as in `knobs.setting_names`.

    Attributes:
        batch: the batch, if all of its parts are known.
        setting: the setting that controls the micro-batch.
        scope: what `setting` counts.
        counts_accumulation: whether `setting` is the total for an optimizer step.
        accumulation: the setting for accumulation: a name, `DERIVED`, `NONE`, or None if unknown.
        accumulation_counts_ranks: whether `accumulation` counts the passes on all ranks.
        total: if accumulation is derived, the fixed setting and its value, else `setting` if it covers a rank's step.
        refusal: why the batch cannot be changed; `help` says what would allow it. Empty if it can be changed.
        asks: the question for the user; `answers` has the result of each possible answer.
        micro, passes, ranks: the parts of the batch that are known.
    """

    batch: BatchSpec | None = None
    setting: str | None = None
    scope: KnobScope | None = None
    counts_accumulation: bool = False
    accumulation: str | None = None
    accumulation_counts_ranks: bool = False
    total: tuple[str, int] | None = None
    refusal: str = ""
    help: str = ""
    asks: Unread | None = None
    answers: tuple[OpenAnswer, ...] = ()
    micro: int | None = None
    passes: int | None = None
    ranks: int | None = None

    def answered(self, known: Mapping[str, str]) -> MeasuredSettings:
        """Return the settings after applying the `known` answers, keyed by question. Each answer may lead to another question."""
        value = known.get(self.asks or "")
        then = next((one.then for one in self.answers if one.value == value), None)
        return then.answered(known) if then is not None else self


@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """An answer to an open question: a setting with value `number`, a scope, or `IN_CODE`. `then` is the answer's result."""

    value: str
    number: int | None
    then: MeasuredSettings


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A rank's process in the first attempt, needed to apply a plan in the next attempt's processes.

    Attributes:
        argv: its full command line with secrets masked, or empty if unknown.
        words: all the words that set a setting, keyed by the setting's name as spelled.
    """

    argv: tuple[str, ...] = ()
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def with_measured(job: JobSpec, seen: MeasuredSettings) -> JobSpec:
    """Return `job` with the measurements applied, unless the user declared otherwise."""
    seen = _on_one_rank(seen)
    given, measured = job.knobs, seen.batch
    if job.entry_kind is EntryKind.TRAINER or seen == MeasuredSettings():
        return job
    is_same = seen.setting is not None and seen.setting == given.batch
    if measured is None and is_same and given.can_change_batch:
        return job  # no step has shown the accumulation, but a declaration or convention gives it
    declared = job.batch if given.can_change_batch and job.batch is not None else None
    if declared is not None and declared.ranks_known and measured is not None and not seen.refusal:
        agrees = factors(measured) == factors(declared)
        if not agrees and given.declared and given.batch is not None:
            text = f"{given.batch} would make {factors(declared)}, and {factors(measured)} was measured"
            return replace(job, knobs=replace(given, refusal=text, help="name the setting that makes it"))
        if agrees and given.batch_scope is not KnobScope.GLOBAL:
            # Declared or conventional, and confirmed by measurement. The number of ranks may be new.
            return replace(job, batch=measured)
    return replace(job, knobs=_measured_knobs(given, seen, job.nproc_per_node), batch=measured or job.batch)


def _on_one_rank(seen: MeasuredSettings) -> MeasuredSettings:
    """If a rank's loop splits its batch, treat that batch as the rank's whole step. Otherwise, change nothing."""
    if not seen.counts_accumulation or seen.scope is not KnobScope.PER_RANK or seen.batch is None:
        return seen
    alone = replace(seen.batch, world_size=1, ranks_known=False)
    return replace(seen, batch=alone, scope=KnobScope.GLOBAL)


def _measured_knobs(given: Knobs, seen: MeasuredSettings, local: int) -> Knobs:
    named = given if given.declared else Knobs()
    batch, accumulation = named.batch or seen.setting, named.accumulation
    scope = _scope(named, seen, batch)
    if accumulation is None and seen.accumulation not in {DERIVED, NONE}:
        accumulation = seen.accumulation
    derived = accumulation is None and seen.accumulation == DERIVED and seen.total is not None
    total, value = seen.total if seen.total is not None else (None, 0)
    stays = total is not None and (derived or total == batch)
    counts_ranks = seen.accumulation_counts_ranks and accumulation == seen.accumulation
    is_known = batch is not None and scope is not KnobScope.UNKNOWN and seen.batch is not None
    refusal, help_ = _refusal(given, seen, is_known=is_known)
    makes = accumulation is not None or derived
    whole = total if derived else named.global_batch
    return replace(
        given,
        batch=batch,
        batch_scope=scope,
        accumulation=accumulation,
        global_batch=whole,
        # The total stays unchanged, whatever it counts. The script compensates for the smaller micro-batch.
        same=((total, str(value)),) if stays and total is not None else (),
        paired=scope is KnobScope.GLOBAL and not seen.counts_accumulation and makes,
        counts=AccumulationCounts.ALL_RANKS if counts_ranks else AccumulationCounts.PER_RANK,
        found=_found(seen, batch, accumulation, scope, whole, local),
        refusal=refusal,
        help=help_,
    )


def _scope(named: Knobs, seen: MeasuredSettings, batch: str | None) -> KnobScope:
    """Return what the setting `batch` counts."""
    if named.batch_scope is not KnobScope.UNKNOWN or batch != seen.setting or seen.scope is None:
        return named.batch_scope
    return seen.scope


def _refusal(given: Knobs, seen: MeasuredSettings, *, is_known: bool) -> tuple[str, str]:
    """Return why the batch cannot change and what would help. `is_known` means the setting, its scope and size are known."""
    if given.unsafe:
        return given.unsafe, ""
    return (seen.refusal, seen.help) if is_known or seen.refusal else (given.refusal, given.help)


def _found(
    seen: MeasuredSettings,
    batch: str | None,
    accumulation: str | None,
    scope: KnobScope,
    total: str | None,
    local: int,
) -> tuple[FoundNumber, ...]:
    """Return the current values of the settings. A node has `local` ranks."""
    now = seen.batch
    if now is None:
        return ()
    holds = now.micro_batch_per_rank
    if scope is KnobScope.GLOBAL:
        holds *= now.world_size * (now.accumulation_steps if seen.counts_accumulation else 1)
    elif scope is KnobScope.PER_NODE:
        holds *= local
    elif seen.total is not None and seen.total[0] == batch:
        holds = seen.total[1]
    steps = now.accumulation_steps * (now.world_size if seen.accumulation_counts_ranks else 1)
    found = [FoundNumber("micro", holds, "measured")] if batch is not None else []
    found += [FoundNumber("accumulation", steps, "measured")] if accumulation is not None else []
    if total is not None and seen.total is not None:
        found.append(FoundNumber("total", seen.total[1], "measured"))
    return tuple(found)


_DECLARE = "--batch-knob NAME --accumulation-knob NAME"
_NO_MICRO = {
    Why.RANKS_DIFFER: "the ranks have different micro-batches",
    Why.SEVERAL_LOADERS: "several data loaders feed the model",
}
_NO_ACCUMULATION = {
    Why.NO_STEP: "no complete step was measured, so the accumulation is not known",
    Why.CHANGING: "the accumulation changes from step to step",
    Why.RANKS_DIFFER: "the ranks accumulate differently",
}


def measured_settings(found: MeasuredBatch, named: Knobs) -> MeasuredSettings:
    """Return the settings derived from an attempt's measurements, in the user's spelling where the user named them."""
    micro, scope, steps = found.micro.number, found.set_by.scope, _passes(found)
    setting, knob = found.set_by.setting, found.accumulated_by.setting
    total = next(iter(found.accumulated_by.candidates), None)
    if found.accumulation_setting != DERIVED:
        is_step = scope is KnobScope.PER_RANK
        total = setting if is_step and setting is not None and setting.number != micro else None
    batch = None
    if micro and steps and found.world_size:
        batch = BatchSpec(micro, steps, found.world_size)
    refusal, help_ = _why_refused(found)
    return MeasuredSettings(
        batch=batch,
        setting=_name(found.set_by, named.batch),
        scope=scope,
        counts_accumulation=found.counts_accumulation,
        accumulation=_name(found.accumulated_by, named.accumulation) or found.accumulation_setting,
        accumulation_counts_ranks=knob is not None and found.accumulated_by.scope is KnobScope.GLOBAL,
        total=(knob_name(total), total.number) if total is not None and total.number is not None else None,
        refusal=refusal,
        help=help_,
        micro=micro,
        passes=found.accumulated.number,
        ranks=found.world_size,
    )


def _name(by: Derivation, named: str | None) -> str | None:
    if by.setting is None:
        return None
    return named if by.why is Why.DECLARED and named is not None else knob_name(by.setting)


def _passes(found: MeasuredBatch) -> int | None:
    """Return the measured accumulation. Until it has been measured, return the value of the setting named for it."""
    knob, steps = found.accumulated_by.setting, found.accumulated.number
    if steps is not None or knob is None or knob.number is None:
        return steps
    ranks = (found.world_size or 1) if found.accumulated_by.scope is KnobScope.GLOBAL else 1
    return knob.number // ranks if knob.number % ranks == 0 else None


def open_part(found: MeasuredBatch, named: Knobs) -> tuple[Unread | None, tuple[Setting, ...]]:
    """Return the first open question for the user and the candidate settings it concerns."""
    if found.micro.number is None:
        return None, ()
    if found.set_by.setting is None:
        is_scope = found.set_by.why is Why.SCOPE and named.batch is not None
        return (Unread.SCOPE if is_scope else Unread.MICRO), found.set_by.candidates
    is_unseen = _passes(found) is None and found.accumulated.why in UNSEEN
    if is_unseen or (found.accumulated.number is not None and found.accumulation_setting is None):
        return Unread.ACCUMULATION, found.accumulated_by.candidates
    return None, ()


def fixed_in_code(seen: MeasuredSettings, found: MeasuredBatch) -> MeasuredSettings:
    """Return `seen`, updated with the user's answer that the missing setting is hard-coded."""
    what = _made_accumulation(found) if found.set_by.setting is not None else _made_micro(found)
    return replace(seen, refusal=f"{what} is in the code, as you answered", help="")


def _why_refused(found: MeasuredBatch) -> tuple[str, str]:
    """Return why the batch cannot be changed and what would allow it."""
    if found.micro.why is Why.NOTHING_SEEN:
        return "", ""
    if found.micro.number is None:
        return _NO_MICRO.get(found.micro.why, "the micro-batch could not be measured"), _DECLARE
    if found.set_by.setting is None:
        return _why_open(found.set_by, _made_micro(found), found), "--batch-knob NAME"
    if _passes(found) is None:
        why = _NO_ACCUMULATION.get(found.accumulated.why, "the accumulation could not be measured")
        return why, "--accumulation-knob NAME"
    if found.accumulation_setting is None:
        return _why_open(found.accumulated_by, _made_accumulation(found), found), "--accumulation-knob NAME"
    return "", ""


def _made_micro(found: MeasuredBatch) -> str:
    return f"what makes the {found.micro.number} samples of a rank"


def _made_accumulation(found: MeasuredBatch) -> str:
    return "what makes the accumulation" + (
        f" of {found.accumulated.number}" if found.accumulated.number else ""
    )


def _why_open(derivation: Derivation, made: str, found: MeasuredBatch) -> str:
    """Explain why a setting is still undetermined. `made` names what the setting would control."""
    names = ", ".join(knob_name(candidate) for candidate in derivation.candidates)
    match derivation.why:
        case Why.DECLARED:
            holds = ", ".join(f"{knob_name(s)} {s.value}" for s in derivation.candidates)
            return f"{made} is not {holds}"
        case Why.FIXED_IN_CODE:
            at = found.loader_at or ""
            # Lightning and accelerate rebuild the script's loader, so their own line does not help.
            place = f" ({at})" if at and "-packages/" not in at else ""
            return f"{made} is in the code{place}: no setting has that value"
        case Why.ARITHMETIC:
            return f"{made} is computed from {names}"
        case Why.SCOPE:
            return f"{made} is {names}, and whether that counts one rank or all is not certain"
        case Why.SEVERAL:
            return f"{made} is one of {names}"
        case _ if names:
            return f"{made} is not certain: perhaps {names}"
        case _:
            return f"{made} is not known"
