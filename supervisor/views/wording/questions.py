"""Questions about a script's batch and their answers, in a language's words."""

from __future__ import annotations

from supervisor.job.batch import describe
from supervisor.job.spec import BatchAnswer, BatchQuestion
from supervisor.run.events import BatchAnswered
from supervisor.run.timeline import answer_values, question_values
from supervisor.views.wording.translate import Words


def question_text(question: BatchQuestion, tr: Words) -> str:
    """``what does --bs 24 count?``."""
    return tr.sentence("batch", "question", question_values(question))


def answer_text(question: BatchQuestion, value: str, tr: Words) -> str:
    """``24 is per rank``."""
    return tr.sentence("batch", "answer", answer_values(question, value))


def given_text(given: BatchAnswered, tr: Words) -> str:
    """``you answered on 2026-11-22: 24 is per rank``, as it stands on the timeline."""
    kind = "remembered" if given.day else "answered"
    values = answer_values(given.question, given.value)
    return tr.sentence("moment", kind, {**values, "day": given.day, "by": given.by, "trial": given.trial})


def effect_text(answer: BatchAnswer, tr: Words) -> str:
    """What an answer leads to: ``12 × accumulation 2 × 2 ranks = global batch 48``."""
    change = answer.change
    if change is None:
        return tr(answer.refusal)
    before, after = change.before.global_batch, change.after.global_batch
    shrinks = tr(f"no longer {before}") if after < before else ""
    return ", ".join(filter(None, (tr(describe(change.after)), shrinks)))


def flags_text(question: BatchQuestion, answer: BatchAnswer) -> str:
    """The words of a command line that answer it beforehand, with what lets the restart be made without a person."""
    change = answer.change
    shrinks = change is not None and change.after.global_batch < change.before.global_batch
    return question.flag(answer.value) + (" --allow-smaller-global" if shrinks else "")
