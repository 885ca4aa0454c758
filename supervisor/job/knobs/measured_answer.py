"""What the facts of an attempt come to for its next one: the settings to change, or the reason why none can be."""

from __future__ import annotations

from dataclasses import replace

from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.job.knobs.facts import Setting
from supervisor.job.knobs.measured import UNSEEN, Derivation, MeasuredBatch, Why
from supervisor.job.knobs.measured_knobs import DERIVED, MeasuredSettings
from supervisor.job.knobs.measured_resume import knob_name
from supervisor.job.spec import Knobs, KnobScope, Unread

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
    """What an attempt's facts come to; a setting that a person named is spelled as it was named."""
    knob, setting, steps = found.accumulation_knob, found.setting, _passes(found)
    counts_ranks = knob is not None and found.accumulation_scope is KnobScope.GLOBAL
    total = next(iter(found.accumulated_by.candidates), None)
    if found.accumulation_setting != DERIVED:
        is_step = found.scope is KnobScope.PER_RANK and found.unit is BatchUnit.SAMPLES
        total = setting if is_step and setting is not None and setting.number != found.micro_batch else None
    batch = None
    if found.micro_batch and steps and found.world_size and found.unit is BatchUnit.SAMPLES:
        batch = BatchSpec(found.micro_batch, steps, found.world_size)
    refusal, help_ = _refusal(found)
    return MeasuredSettings(
        batch=batch,
        setting=_name(setting, found.set_by, named.batch),
        scope=found.scope,
        counts_accumulation=found.counts_accumulation,
        accumulation=_name(knob, found.accumulated_by, named.accumulation) or found.accumulation_setting,
        accumulation_counts_ranks=counts_ranks,
        total=(knob_name(total), total.number) if total is not None and total.number is not None else None,
        refusal=refusal,
        help=help_,
        micro=found.micro_batch if found.unit is BatchUnit.SAMPLES else None,
        passes=found.accumulation,
        ranks=found.world_size,
    )


def _name(setting: Setting | None, derivation: Derivation, named: str | None) -> str | None:
    if setting is None:
        return None
    return named if derivation.why is Why.DECLARED and named is not None else knob_name(setting)


def _passes(found: MeasuredBatch) -> int | None:
    """The accumulation as it was measured; before, what the setting that is named for it says."""
    knob = found.accumulation_knob
    if found.accumulation is not None or knob is None or knob.number is None:
        return found.accumulation
    ranks = (found.world_size or 1) if found.accumulation_scope is KnobScope.GLOBAL else 1
    return knob.number // ranks if knob.number % ranks == 0 else None


def open_part(found: MeasuredBatch, named: Knobs) -> tuple[Unread | None, tuple[Setting, ...]]:
    """What a person could answer, in the order in which it is refused, and the settings in question."""
    if found.micro_batch is None or found.unit is BatchUnit.TOKENS:
        return None, ()
    if found.setting is None:
        is_scope = found.set_by.why is Why.SCOPE and named.batch is not None
        return (Unread.SCOPE if is_scope else Unread.MICRO), found.set_by.candidates
    is_unseen = _passes(found) is None and found.accumulated.why in UNSEEN
    if is_unseen or (found.accumulation is not None and found.accumulation_setting is None):
        return Unread.ACCUMULATION, found.accumulated_by.candidates
    return None, ()


def fixed_in_code(seen: MeasuredSettings, found: MeasuredBatch) -> MeasuredSettings:
    """`seen`, whose open part a person said to be in the code."""
    what = _made_accumulation(found) if found.setting is not None else _made_micro(found)
    return replace(seen, refusal=f"{what} is in the code, as you answered", help="")


def _refusal(found: MeasuredBatch) -> tuple[str, str]:
    """Why the batch cannot be changed, and what would let it be."""
    if found.micro.why is Why.NOTHING_SEEN:
        return "", ""
    if found.unit is BatchUnit.TOKENS:
        return "the batch is a budget of tokens", _DECLARE
    if found.micro_batch is None:
        return _NO_MICRO.get(found.micro.why, "the micro-batch could not be measured"), _DECLARE
    if found.setting is None:
        return _why_open(found.set_by, _made_micro(found), found), "--batch-knob NAME"
    if _passes(found) is None:
        why = _NO_ACCUMULATION.get(found.accumulated.why, "the accumulation could not be measured")
        return why, "--accumulation-knob NAME"
    if found.accumulation_setting is None:
        return _why_open(found.accumulated_by, _made_accumulation(found), found), "--accumulation-knob NAME"
    return "", ""


def _made_micro(found: MeasuredBatch) -> str:
    return f"what makes the {found.micro_batch} samples of a rank"


def _made_accumulation(found: MeasuredBatch) -> str:
    return "what makes the accumulation" + (f" of {found.accumulation}" if found.accumulation else "")


def _why_open(derivation: Derivation, made: str, found: MeasuredBatch) -> str:
    """`made`: what the setting would make."""
    names = ", ".join(knob_name(candidate) for candidate in derivation.candidates)
    match derivation.why:
        case Why.DECLARED:
            holds = ", ".join(f"{knob_name(s)} {s.value}" for s in derivation.candidates)
            return f"{made} is not {holds}"
        case Why.FIXED_IN_CODE:
            at = found.loader_at or ""
            # Lightning and accelerate build the script's loader again: their own line is no place to look.
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
