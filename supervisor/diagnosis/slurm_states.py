"""The only table of SLURM job states: which ones mean that a job is waiting or has ended, and how it ended.

Source: "JOB STATE CODES" in sacct(1) and squeue(1).
"""

from __future__ import annotations

import re
from typing import Final

from supervisor.run.records import FailureClass, Reason

# The states that decide alone. For others, the job's own logs are more informative. Add a state here. `stoker slurm`, the
# verdict and the displayed words follow from its reason.
OUTCOMES: Final = {
    "OUT_OF_MEMORY": (FailureClass.HOST_OOM, Reason.SLURM),
    "TIMEOUT": (FailureClass.TERMINATED, Reason.TIME_LIMIT),
    "DEADLINE": (FailureClass.TERMINATED, Reason.TIME_LIMIT),
    "PREEMPTED": (FailureClass.TERMINATED, Reason.PREEMPTED),
    "NODE_FAIL": (FailureClass.TERMINATED, Reason.NODE_FAIL),
    "BOOT_FAIL": (FailureClass.TERMINATED, Reason.NODE_FAIL),
    "CANCELLED": (FailureClass.TERMINATED, Reason.USER),
}
# A job in one of these states waits for its nodes.
WAITING: Final = frozenset({"PENDING"})
# A job with one of these states has ended.
ENDED: Final = frozenset((*OUTCOMES, "COMPLETED", "FAILED"))
# sacct's default column is ten characters wide and marks a cut with a plus sign: OUT_OF_ME+, CANCELLED+.
_CUT_TO = 9
_SCONTROL = re.compile(r"JobState=([A-Z_]+)")
_SPELT = {spelt: state for state in sorted(ENDED) for spelt in (state, f"{state[:_CUT_TO]}+")}
_STATE_WORD = re.compile(r"(?<!\w)[A-Z_]+\+?(?!\w)")


def state_in(text: str, *, by_sacct: bool) -> str | None:
    """Return the first job state in output from ``scontrol show job`` or ``sacct``, spelled out."""
    if match := _SCONTROL.search(text):
        return match[1]
    if not by_sacct:
        return None
    return next((_SPELT[word] for word in _STATE_WORD.findall(text) if word in _SPELT), None)
