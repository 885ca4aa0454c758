"""Builds the questions about a batch that measurements leave open, with the result of each answer.

An answer acts like declaring the setting (`--batch-knob`, `--batch-scope`, `--accumulation-knob`): it is checked
by evaluating the measurements again. If nothing can be lost, an answer is tried without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, TypeAlias

from supervisor.job.batch import BatchChange
from supervisor.job.knobs.measured import MeasuredBatch, Why
from supervisor.job.knobs.measured_knobs import (
    MeasuredSettings,
    OpenAnswer,
    fixed_in_code,
    measured_settings,
    open_part,
    with_measured,
)
from supervisor.job.knobs.resume_settings import knob_name
from supervisor.job.knobs.setting_names import BatchName, bare, batch_name, is_accumulation
from supervisor.job.launch.oom_plan import next_batch, oom_plan
from supervisor.job.spec import IN_CODE, BatchAnswer, BatchQuestion, JobSpec, Knobs, KnobScope, Unread

MOST_ANSWERS: Final = 3
"""The maximum number of answer keys on a card."""
MOST_TRIALS: Final = 2

Derive: TypeAlias = Callable[[Knobs], MeasuredBatch]
"""A function that derives the batch from an attempt's measurements, given the user's declarations."""


def with_declared(given: Knobs, what: Unread, value: str) -> Knobs:
    """Return the user's declarations with the answer added."""
    match what:
        case Unread.SCOPE:
            return replace(given, batch_scope=KnobScope(value))
        case Unread.MICRO:
            return replace(given, batch=value)
        case Unread.ACCUMULATION:
            return replace(given, accumulation=value)
        case _:
            return given


def asked_settings(
    derive: Derive,
    named: Knobs,
    found: MeasuredBatch | None = None,
    *,
    answered: frozenset[Unread] = frozenset(),
) -> MeasuredSettings:
    """Return an attempt's measured settings, with the result of each answer to the first open question.

    `found` is the batch without answers, if known. Questions in `answered` are not asked again, because one was tried.
    """
    found = found or derive(named)
    seen, (what, candidates) = measured_settings(found, named), open_part(found, named)
    if what is Unread.SCOPE:
        numbers = {scope.value: candidates[0].number for scope in (KnobScope.PER_RANK, KnobScope.GLOBAL)}
        named = replace(named, batch=named.batch or knob_name(candidates[0]))
    else:
        numbers = {knob_name(setting): setting.number for setting in candidates if setting.is_input}
    if what is None or what in answered:
        return seen
    answers: list[OpenAnswer] = []
    for value, number in numbers.items():
        then = asked_settings(derive, with_declared(named, what, value), answered=answered | {what})
        stands = then.accumulation if what is Unread.ACCUMULATION else then.setting
        if stands is not None or then.asks is Unread.SCOPE:
            answers.append(OpenAnswer(value, number, then))
        if len(answers) == MOST_ANSWERS:
            break
    if not answers:
        return seen
    if len(answers) == 1 and found.set_by.why is Why.SCOPE and answers[0].then.asks is Unread.SCOPE:
        return answers[0].then
    if what is not Unread.SCOPE:
        answers.insert(MOST_ANSWERS - 1, OpenAnswer(IN_CODE, None, fixed_in_code(seen, found)))
    return replace(seen, asks=what, answers=tuple(answers[:MOST_ANSWERS]))


def question_of(
    job: JobSpec, seen: MeasuredSettings, wrong: Collection[str] = (), script: str = ""
) -> BatchQuestion | None:
    """Return the question to ask about a job whose attempt showed `seen`, or None if no answer would help.

    Args:
        job: the job as it was started.
        seen: the settings with the answers so far.
        wrong: answers that led to an attempt with a different batch than planned.
        script: the hash of the job's script.
    """
    if seen.asks is None:
        return None
    answers = tuple(_answer(job, one, is_wrong=one.value in wrong) for one in seen.answers)
    leads_on = (one.then.asks is not None and one.value not in wrong for one in seen.answers)
    if not any(leads_on) and all(answer.change is None for answer in answers):
        return None
    knob, number = "", seen.passes if seen.asks is Unread.ACCUMULATION else seen.micro
    if seen.asks is Unread.SCOPE:
        knob, number = seen.answers[0].then.setting or "", seen.answers[0].number
    return BatchQuestion(seen.asks, knob, number, answers, script, seen.ranks, seen.passes)


def _answer(job: JobSpec, one: OpenAnswer, *, is_wrong: bool) -> BatchAnswer:
    """Return what a restart after OOM would change given this answer (maybe the global batch), or why nothing would change."""
    change, why = None, ""
    if is_wrong:
        why = "a restart with it had another batch than planned"
    elif one.value == IN_CODE:  # not answered yet, as the next reason says
        why = "no restart can change it"
    elif one.then.asks is not None:
        why = one.then.refusal
    else:
        job = with_measured(job, one.then)
        plan = oom_plan(replace(job, retry=replace(job.retry, allow_smaller_global=True)), is_measured=True)
        if not plan.changes:
            why = plan.why
        elif job.batch is not None:
            after = next_batch(job, job.batch, smaller_global=plan.smaller_global)
            change = BatchChange(job.batch, after) if after is not None else None
    return BatchAnswer(one.value, change, why, one.number)


def to_try(seen: MeasuredSettings, wrong: Collection[str]) -> str | None:
    """Return the likeliest answer whose name fits, which a restart may try before asking the user, or None."""
    if len(wrong) >= MOST_TRIALS or seen.asks in {None, Unread.SCOPE}:
        return None
    names = (one.value for one in seen.answers if one.value != IN_CODE and one.value not in wrong)
    for name in names:
        own = bare(name).lstrip("-+")
        # A batch word, and no word for another number (heads, layers, a width, a length, steps).
        if is_accumulation(own) if seen.asks is Unread.ACCUMULATION else batch_name(own) > BatchName.NONE:
            return name
    return None
