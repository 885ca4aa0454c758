"""Decides what to do after an attempt: takes the verdict, history and budgets and returns one decision with its reason.

Pure. `rules` holds one rule per failure class, `changes` builds the change a rule calls for, and `decide` applies them.
A headless run is never held. It fails instead (exit code 1, or 4 if a budget is used up).
"""

from supervisor.policy.decide import (
    EXIT_DO_NOT_REQUEUE,
    EXIT_ENDED_EARLY,
    EXIT_FAILED,
    EXIT_GAVE_UP,
    EXIT_LOST,
    EXIT_REQUEUE,
    EXIT_STOPPED,
    decide,
)
from supervisor.policy.history import PolicyInput, restarts_since_progress
from supervisor.policy.rule_words import ASKED_FOR, budget_text
from supervisor.policy.rules import RULES, Answer, Rule, rule_for

__all__ = [
    "ASKED_FOR",
    "EXIT_DO_NOT_REQUEUE",
    "EXIT_ENDED_EARLY",
    "EXIT_FAILED",
    "EXIT_GAVE_UP",
    "EXIT_LOST",
    "EXIT_REQUEUE",
    "EXIT_STOPPED",
    "RULES",
    "Answer",
    "PolicyInput",
    "Rule",
    "budget_text",
    "decide",
    "restarts_since_progress",
    "rule_for",
]
