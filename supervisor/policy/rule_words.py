"""Puts the policy's rules and a restart's budget into words, for the generated pages and for ``stoker troubleshoot``."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from supervisor.policy.decide import HAS_OWN_COUNT, alike_since_progress, counted_retries, is_unchanged
from supervisor.policy.history import PolicyInput, is_unmeasured
from supervisor.policy.rules import REASON_RULES, RULES, Answer, Rule, rule_for
from supervisor.run.events import StopWhy
from supervisor.run.records import Decision, DecisionKind, FailureClass, Precondition

ASKED_FOR: Final = "budget: none is spent, for a person asked for it; all start again from here"
WORDS: Final = MappingProxyType(
    {
        Answer.SHRINK: "restart with a smaller micro-batch, same global batch",
        Answer.RESTART: "restart from the newest checkpoint",
        Answer.NEW_PORT: "restart on another port, unless you set it",
        Answer.NO_LIBUV: "restart with USE_LIBUV=0 for agent and workers",
        Answer.RAISE_FILES: "restart with the soft limit raised to the hard one",
        Answer.FEWER_WORKERS: "restart with half the data workers",
        Answer.UNMEASURED: "restart without stoker's measurements",
        Answer.RESUME_EARLIER: "restart from an earlier checkpoint",
        Answer.REQUEUE: "exit 75 with a checkpoint, else 5",
        Answer.STOP: "stop",
    }
)


def rules_about(failure: FailureClass) -> list[tuple[str, str]]:
    """Return a reason and a sentence for each of a class's rules. The reason is empty for the class itself."""
    own = [(reason.value, sentence(rule)) for (of, reason), rule in REASON_RULES.items() if of is failure]
    return [("", sentence(RULES[failure])), *own]


def sentence(rule: Rule) -> str:
    """Describe a rule of the tables: what it does, how often it applies, and what it waits for first."""
    what = WORDS[rule.answer]
    what = what[0].upper() + what[1:]
    if rule.answer is Answer.STOP:
        return f"{what}: {rule.advice_if_not_restarted}."
    if rule.answer is Answer.REQUEUE:
        return f"{what}."
    times = {None: "while `--max-retries` lasts", 1: "once"}.get(
        rule.max_times, f"{rule.max_times} times at most"
    )
    progress = ", only after progress" if rule.requires_progress else ""
    first = [one.value for one in rule.show_first if one is not Precondition.GPU_MEMORY]
    waits = f"; first it waits for the {' and the '.join(first)}" if first else ""
    return f"{what} ({times}{progress}{waits})."


def budget_text(history: PolicyInput, decision: Decision) -> str | None:
    """Describe a restart's budget and how much of it will be used, or return None for any other decision."""
    verdict = history.now.verdict
    if decision.kind is not DecisionKind.RESTART or verdict is None:
        return None
    if history.now.stop is not None and history.now.stop.why is StopWhy.RESTART:
        return ASKED_FOR
    if is_unmeasured(decision):
        return "budget: none is spent, for once a run is outside of them"
    rule = rule_for(verdict.failure, verdict.reason, history.retry.overrides, verdict.signature)
    name = verdict.failure.value
    parts = []
    if rule.max_times is not None:
        used = len(alike_since_progress(history, verdict.failure)) + 1
        parts.append(f"{used} of {rule.max_times} for {name}")
    if rule.answer not in HAS_OWN_COUNT and is_unchanged(decision.change):
        parts.append(f"{len(counted_retries(history)) + 1} of {history.retry.max_retries} (--max-retries)")
    else:
        parts.append("not counted by --max-retries, for the job changes")
    return f"budget, without progress: {'; '.join(parts)}"
