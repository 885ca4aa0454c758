"""Questions about a script's batch and their answers, in a language's words."""

from __future__ import annotations

from supervisor.job.batch import describe
from supervisor.job.spec import BatchAnswer, BatchQuestion
from supervisor.run.events import BatchAnswered
from supervisor.views.format import date
from supervisor.views.wording.kinds import answer_kind
from supervisor.views.wording.translate import Words


def question_text(question: BatchQuestion, tr: Words) -> str:
    """``what does --bs 24 count?``."""
    return tr.sentence("question", question.what, {"knob": question.knob, "number": question.number})


def answer_text(question: BatchQuestion, value: str, tr: Words) -> str:
    """``24 is per rank``."""
    return tr.sentence(
        "answer", answer_kind(question.what, value), {"number": question.number, "value": value}
    )


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


def given_text(given: BatchAnswered, tr: Words) -> str:
    """``you answered on 2026-11-22: 24 is per rank``."""
    text = answer_text(given.question, given.value, tr)
    if given.answered_t is None:
        return tr.sentence("moment", "answered", {"by": given.by, "text": text})
    return tr.sentence("moment", "remembered", {"day": date(given.answered_t), "text": text})
