"""SLURM's job states: how they are read from its records, and what each says about a job's end.

Sources: "JOB STATE CODES" in sacct(1) and squeue(1). sacct's default column is ten characters wide and marks a cut with
a plus sign: ``OUT_OF_ME+``, ``CANCELLED+``.
"""

from __future__ import annotations

import re
from typing import Final

from supervisor.run.failures import FailureClass, Reason

# What a state alone decides; the job's own logs say more about all others (FAILED, COMPLETED, …).
OUTCOMES: Final = {
    "OUT_OF_MEMORY": (FailureClass.HOST_OOM, Reason.SLURM),
    "TIMEOUT": (FailureClass.TERMINATED, Reason.TIME_LIMIT),
    "DEADLINE": (FailureClass.TERMINATED, Reason.TIME_LIMIT),
    "PREEMPTED": (FailureClass.TERMINATED, Reason.PREEMPTED),
    "NODE_FAIL": (FailureClass.TERMINATED, Reason.NODE_FAIL),
    "BOOT_FAIL": (FailureClass.TERMINATED, Reason.NODE_FAIL),
    "CANCELLED": (FailureClass.TERMINATED, Reason.USER),
}
_STATES = (*OUTCOMES, "COMPLETED", "FAILED")
_CUT_TO = 9
_SCONTROL = re.compile(r"JobState=([A-Z_]+)")
_SPELT = {spelt: state for state in reversed(_STATES) for spelt in (state, f"{state[:_CUT_TO]}+")}
_WORD = re.compile(r"(?<!\w)[A-Z_]+\+?(?!\w)")


def state_in(text: str, *, by_sacct: bool) -> str | None:
    """The first job state in a record of ``scontrol show job``, or of ``sacct``; spelt out."""
    if match := _SCONTROL.search(text):
        return match[1]
    return next((_SPELT[word] for word in _WORD.findall(text) if word in _SPELT), None) if by_sacct else None
