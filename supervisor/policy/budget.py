"""What counts against which budget, and the line that says so. What a person asks for is taken from none.

``--max-retries`` bounds restarts of the job as it was. A plan that changes what failed (a smaller micro-batch, another port)
differs from the try before it, and is bounded by its rule's own count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from supervisor.policy.history import (
    PastAttempt,
    PolicyInput,
    StopCause,
    is_unmeasured,
    restarts_since_progress,
)
from supervisor.policy.rules import Answer, rule_for
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange

HAS_OWN_COUNT: Final = frozenset((Answer.SHRINK, Answer.NEW_PORT, Answer.UNMEASURED))
"""Answers that ``--max-retries`` does not bound, unless it is 0."""

ASKED_FOR: Final = "budget: none is spent, for a person asked for it; all start again from here"


def is_unchanged(change: SpecChange) -> bool:
    """Whether the next attempt runs the same job."""
    return replace(change, from_scratch=False) == SpecChange()


def alike_since_progress(history: PolicyInput, failure: FailureClass) -> list[PastAttempt]:
    """The attempts since the last progress that were restarted after this class of failure."""
    past = restarts_since_progress(history)
    return [a for a in past if a.verdict is not None and a.verdict.failure is failure]


def counted_retries(history: PolicyInput) -> list[PastAttempt]:
    """The attempts since the last progress whose restart ``--max-retries`` counts: those of the same job."""
    return [
        a
        for a in restarts_since_progress(history)
        if a.decision is None or a.decision.change is None or is_unchanged(a.decision.change)
    ]


def budget_text(history: PolicyInput, decision: Decision) -> str | None:
    """Which budget a restart is taken from, and how much of it is used then; None for any other decision."""
    verdict = history.now.verdict
    if decision.kind is not DecisionKind.RESTART or verdict is None:
        return None
    if history.now.stop is StopCause.RESTART:
        return ASKED_FOR
    if is_unmeasured(decision):
        return "budget: none is spent, for once a run is outside of them"
    rule = rule_for(verdict.failure, verdict.reason, history.retry.overrides, verdict.signature)
    name = verdict.failure.value
    parts = []
    if rule.max_times is not None:
        used = len(alike_since_progress(history, verdict.failure)) + 1
        parts.append(f"{used} of {rule.max_times} for {name}")
    if rule.answer not in HAS_OWN_COUNT and (decision.change is None or is_unchanged(decision.change)):
        parts.append(f"{len(counted_retries(history)) + 1} of {history.retry.max_retries} (--max-retries)")
    else:
        parts.append("not counted by --max-retries, for the job changes")
    return f"budget, without progress: {'; '.join(parts)}"
