"""What of a script's batch could not be read and a person can answer, with what each answer would lead to.

A question is asked only where an answer makes a smaller batch possible and where the answers differ in what they change: where all
lead to the same numbers there is nothing to ask. An answer is the declaration that a flag would make (`--batch-scope`,
`--batch-knob`, `--accumulation-knob`), so that all that a declared name must stand up to holds for it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, assert_never

from supervisor.job.batch import BatchChange, BatchSpec
from supervisor.job.errors import JobError
from supervisor.job.knobs.batch_settings.set_batch import batch_values, why_not_changeable, why_size_unknown
from supervisor.job.memory_fit import choose_smaller
from supervisor.job.spec import BatchAnswer, BatchQuestion, Knobs, KnobScope, Unread

Outcome: TypeAlias = tuple[Knobs, BatchSpec | None]
"""The knobs with an answer, and the batch that they make up."""


def with_declared(given: Knobs | None, what: Unread, value: str) -> Knobs:
    """What a person named, and the answer besides."""
    known = given or Knobs()
    match what:
        case Unread.SCOPE:
            return replace(known, batch_scope=KnobScope(value))
        case Unread.MICRO:
            return replace(known, batch=value)
        case Unread.ACCUMULATION:
            return replace(known, accumulation=value)
        case Unread.COUNTER | Unread.EXIT_CODE | Unread.RESUME:
            return known
        case _:
            assert_never(what)


def question_of(
    knobs: Knobs,
    outcome_of: Callable[[str], Outcome],
    *,
    local_world_size: int,
    minimum: int = 1,
    per_node: bool = False,
    script: str = "",
) -> tuple[BatchQuestion | None, tuple[Outcome, ...]]:
    """The question that the refusal of `knobs` leaves open, and what each of its answers leads to.

    Args:
        knobs: what was found, with what is `unread` of it.
        outcome_of: knobs and batch with one answer; raises JobError where they do not divide.
        local_world_size: ranks on a node.
        minimum: the least micro-batch.
        per_node: whether a batch may count a node's samples.
        script: hash of the files that were read.

    Returns:
        No question and no outcome: no answer would help. No question and one outcome: all answers come to this.
    """
    if knobs.unread is None:
        return None, ()
    values: tuple[str, ...] = knobs.choices
    if knobs.unread is Unread.SCOPE:
        scopes = (KnobScope.PER_RANK, KnobScope.GLOBAL, *((KnobScope.PER_NODE,) if per_node else ()))
        values = tuple(scope.value for scope in scopes)
    answers: list[BatchAnswer] = []
    outcomes: list[Outcome] = []
    changes: list[object] = []
    for value in values:
        try:
            outcome = outcome_of(value)
            change, refusal = _change(*outcome, minimum)
            settings = _settings(outcome[0], change, local_world_size)
        except JobError as error:
            outcome = (replace(knobs, refusal=error.message, help="", unread=None), None)
            change, refusal, settings = None, error.message, ()
        answers.append(BatchAnswer(value, change, refusal))
        outcomes.append(outcome)
        changes.append((change, settings))
    if all(answer.change is None for answer in answers):
        return None, ()
    if all(one == changes[0] for one in changes):
        return None, (outcomes[0],)
    number = knobs.number("micro")
    about = (knobs.batch or "", number.value if number is not None else None)
    knob, value_now = about if knobs.unread is Unread.SCOPE else ("", None)
    return BatchQuestion(knobs.unread, knob, value_now, tuple(answers), script), tuple(outcomes)


def _change(knobs: Knobs, batch: BatchSpec | None, minimum: int) -> tuple[BatchChange | None, str]:
    """What an out-of-memory failure would change, or why nothing."""
    known = knobs.batch is not None and knobs.batch_scope is not KnobScope.UNKNOWN and knobs.unread is None
    if not (knobs.can_change_batch or known):
        return None, why_not_changeable(knobs)
    if batch is None:
        return None, ": ".join(why_size_unknown(knobs)) if not knobs.refusal else why_not_changeable(knobs)
    choice = choose_smaller(batch, minimum=minimum)
    if choice is None:
        return None, f"no micro-batch of {max(minimum, 1)} or more below {batch.micro_batch_per_rank} is left"
    after = choice.batch
    if not knobs.can_change_batch:
        after = replace(after, accumulation_steps=batch.accumulation_steps)
    return BatchChange(batch, after), ""


def _settings(knobs: Knobs, change: BatchChange | None, local_world_size: int) -> tuple[tuple[str, str], ...]:
    if change is None:
        return ()
    return batch_values(knobs, change.after, before=change.before, local_world_size=local_world_size)
