"""Job states as `scontrol show job` and `sacct` print them."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.slurm_states import state_in

SACCT = """JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
4711              train        gpu        lab          8 {state:>10}    0:125
"""


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("CANCELLED+", "CANCELLED"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("TIMEOUT", "TIMEOUT"),
        ("COMPLETED", "COMPLETED"),
        ("RUNNING", None),
    ],
)
def test_sacct_cuts_its_columns(printed: str, state: str | None) -> None:
    assert state_in(SACCT.format(state=printed), by_sacct=True) == state


def test_only_sacct_prints_bare_states() -> None:
    assert state_in("training COMPLETED in 3 h, 0 FAILED", by_sacct=False) is None
    assert (
        state_in("JobId=4711\n   JobState=OUT_OF_MEMORY Reason=OutOfMemory", by_sacct=False)
        == "OUT_OF_MEMORY"
    )
    assert state_in("cancelled_by=TIMEOUTS", by_sacct=True) is None
