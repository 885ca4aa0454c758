"""What the facts of an attempt come to for its next one: the settings to change, or the reason why none can be."""

from __future__ import annotations

from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.job.knobs.facts import Setting
from supervisor.job.knobs.measured import Certainty, Derivation, MeasuredBatch, Why
from supervisor.job.knobs.measured_knobs import DERIVED, MeasuredSettings
from supervisor.job.knobs.measured_resume import knob_name
from supervisor.job.spec import Knobs, KnobScope

_DECLARE = "--batch-knob NAME --accumulation-knob NAME"


def measured_settings(found: MeasuredBatch, named: Knobs) -> MeasuredSettings:
    """What an attempt's facts come to; a setting that a person named is spelled as it was named."""
    accumulation, tried = found.accumulation_knob, _tried(found)
    total = next(iter(found.accumulated_by.candidates), None)
    derived = found.accumulation_setting == DERIVED and total is not None and total.number is not None
    steps = tried.number if tried is not None else found.accumulation
    batch = None
    if found.micro_batch and steps and found.world_size and found.unit is BatchUnit.SAMPLES:
        batch = BatchSpec(found.micro_batch, steps, found.world_size)
    refusal, help_ = _refusal(found, tried)
    return MeasuredSettings(
        batch=batch,
        setting=_name(found.setting, found.set_by, named.batch),
        scope=found.scope,
        counts_accumulation=found.counts_accumulation,
        accumulation=_name(accumulation or tried, found.accumulated_by, named.accumulation)
        or found.accumulation_setting,
        accumulation_counts_ranks=accumulation is not None and found.accumulation_scope is KnobScope.GLOBAL,
        total=(knob_name(total), total.number) if derived and total is not None and total.number else None,
        refusal=refusal,
        help=help_,
    )


def _name(setting: Setting | None, derivation: Derivation, named: str | None) -> str | None:
    if setting is None:
        return None
    return named if derivation.why is Why.DECLARED and named is not None else knob_name(setting)


def _tried(found: MeasuredBatch) -> Setting | None:
    """The setting that seems to make the accumulation, where the attempt ended before a step and had loaded nothing.

    Nothing can be lost then: the plan is tried, and the next attempt's first steps confirm it or end it.
    """
    asked = found.accumulated
    if asked.why is not Why.NO_STEP or asked.certainty is not Certainty.ASKED or len(asked.candidates) != 1:
        return None
    only = asked.candidates[0]
    return only if only.number is not None and only.is_input and not found.has_loaded else None


def _refusal(found: MeasuredBatch, tried: Setting | None) -> tuple[str, str]:
    """Why the batch cannot be changed, and what would let it be."""
    if found.micro.why is Why.NOTHING_SEEN:
        return "", ""
    if found.unit is BatchUnit.TOKENS:
        return "the batch is a budget of tokens", _DECLARE
    if found.micro_batch is None:
        return _why_no_micro(found.micro), _DECLARE
    if found.setting is None:
        made = f"what makes the {found.micro_batch} samples of a rank"
        return _why_open(found.set_by, made, found), "--batch-knob NAME"
    if found.accumulation is None and tried is None:
        return _why_no_accumulation(found.accumulated), "--accumulation-knob NAME"
    if found.accumulation_setting is None and tried is None:
        made = f"what makes the accumulation of {found.accumulation}"
        return _why_open(found.accumulated_by, made, found), "--accumulation-knob NAME"
    return "", ""


def _why_no_micro(derivation: Derivation) -> str:
    match derivation.why:
        case Why.RANKS_DIFFER:
            return "the ranks have different micro-batches"
        case Why.SEVERAL_LOADERS:
            return "several data loaders feed the model"
        case _:
            return "the micro-batch could not be measured"


def _why_no_accumulation(derivation: Derivation) -> str:
    match derivation.why:
        case Why.NO_STEP:
            return "no complete step was measured, so the accumulation is not known"
        case Why.CHANGING:
            return "the accumulation changes from step to step"
        case Why.RANKS_DIFFER:
            return "the ranks accumulate differently"
        case _:
            return "the accumulation could not be measured"


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
