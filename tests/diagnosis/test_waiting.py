"""Which rank did not come to a collective, from the lines of NCCL's watchdogs and heartbeat monitors alone.

Wordings: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of 2.3 and of 2.8.
"""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import FailureClass, Reason, Verdict
from supervisor.sources.signature_files import Engine

STEPS = [f"step {number} loss {3 - number / 100:.3f}" for number in range(1, 21)]
DEFAULT = "PG ID 0 PG GUID 0(default_pg)"


def head(rank: int) -> str:
    return f"[rank{rank}]:[E810 03:04:10.868054967 ProcessGroupNCCL.cpp:2241] "


def timed_out(rank: int, number: int = 78, group: str = DEFAULT, op: str = "BROADCAST") -> list[str]:
    """A rank whose own watchdog fired."""
    return [
        f"{head(rank)}[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={op}, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600087 milliseconds before timing out.",
        f"{head(rank)}[{group} Rank {rank}]  failure detected by watchdog at work sequence id: {number} PG status: last enqueued work: {number + 1}, last completed work: {number - 1}",
        f"{head(rank)}[{group} Rank {rank}] First PG on this rank to signal dumping.",
    ]


def answered(rank: int, called: int, finished: int, whose: str = " rank 1") -> list[str]:
    """A rank that writes its dump because some watchdog fired."""
    return [
        f"{head(rank)}[{DEFAULT} Rank {rank}] Observed flight recorder dump signal from another rank via TCPStore.",
        f"{head(rank)}[{DEFAULT} Rank {rank}] Received a dump signal due to a collective timeout from {whose} and we will try our best to dump the debug info. Last enqueued NCCL work: {called}, last completed NCCL work: {finished}.This is most likely caused by incorrect usages of collectives",
    ]


def judged(engine: Engine, *parts: list[str]) -> Verdict:
    text = "\n".join([*STEPS, *(line for part in parts for line in part)]) + "\n"
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    return diagnose(job, engine.signatures, engine.matcher)


def test_who_had_finished_all_it_called_never_entered(engine: Engine) -> None:
    """One watchdog fired; of those that answered, 0 and 3 wait in the same collective, and 2 never called it."""
    found = judged(engine, timed_out(1), answered(0, 79, 77), answered(2, 77, 77), answered(3, 78, 77))
    assert (found.failure, found.rank) == (FailureClass.NCCL_TIMEOUT, 2)
    assert found.title == "A collective timed out: rank 2 never joined it"


@pytest.mark.parametrize(
    "text",
    [
        "[83421.120100] Kernel panic - not syncing: Fatal machine check",
        "[83421.12] mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400",
        "Oct 18 03:12:44 node7 kernel: Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b",
    ],
)
def test_a_kernel_panic_is_the_end_of_a_node(engine: Engine, text: str) -> None:
    found = judged(engine, [text])
    assert (found.failure, found.reason) == (FailureClass.TERMINATED, Reason.NODE_FAIL)
