"""The rules of policy as sentences: for the pages made from them, and for ``stoker troubleshoot``."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from supervisor.policy.rules import REASON_RULES, RULES, Answer, Rule
from supervisor.run.records import FailureClass, Precondition

WORDS: Final = MappingProxyType(
    {
        Answer.SHRINK: "restart with a smaller micro-batch, same global batch",
        Answer.RESTART: "restart from the newest checkpoint",
        Answer.NEW_PORT: "restart on another port, unless a person named it",
        Answer.NO_LIBUV: "restart with USE_LIBUV=0 for agent and workers",
        Answer.RAISE_FILES: "restart with the soft limit raised to the hard one",
        Answer.FEWER_WORKERS: "restart with less shared memory: file_system sharing, workers, prefetch",
        Answer.UNMEASURED: "restart without stoker's measurements",
        Answer.RESUME_EARLIER: "restart from an earlier checkpoint",
        Answer.EXCLUDE_GPU: "restart without the faulty GPU where `--min-ranks` allows, else on all",
        Answer.REQUEUE: "exit 75 with a checkpoint, else 5",
        Answer.HOLD: "hold",
        Answer.STOP: "stop",
    }
)


def rules_about(failure: FailureClass) -> list[tuple[str, str]]:
    """Reason (empty: of the class itself) and sentence of each of its rules."""
    own = [(reason.value, sentence(rule)) for (of, reason), rule in REASON_RULES.items() if of is failure]
    return [("", sentence(RULES[failure])), *own]


def sentence(rule: Rule) -> str:
    """One rule: what is done, how often, what is waited for first."""
    what = WORDS[rule.answer]
    what = what[0].upper() + what[1:]
    if rule.answer in {Answer.STOP, Answer.HOLD}:
        return f"{what}: {rule.advice_if_not_restarted}."
    if rule.answer is Answer.REQUEUE:
        return f"{what}."
    times = {None: "while `--max-retries` lasts", 1: "once"}.get(
        rule.max_times, f"{rule.max_times} times at most"
    )
    progress = ", only after progress" if rule.requires_progress else ""
    first = [one.value.replace("_", " ") for one in rule.show_first if one is not Precondition.GPU_MEMORY]
    waits = f"; first it waits for the {' and the '.join(first)}" if first else ""
    return f"{what} ({times}{progress}{waits})."
