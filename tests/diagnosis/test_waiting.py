"""Which rank did not come to a collective, from the lines of NCCL's watchdogs and heartbeat monitors alone.

Wordings: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of 2.3 and of 2.8.
"""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.failures import FailureClass, Reason
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine

STEPS = [f"step {number} loss {3 - number / 100:.3f}" for number in range(1, 21)]
DEFAULT = "PG ID 0 PG GUID 0(default_pg)"
# What NCCL's RAS prints while the ranks hang: its counts are those of operations launched, and all may be alike.
RAS_OK = [
    "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
    "    0         1         1         4         4         4   RUNNING      OK",
]


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


def test_of_an_older_version(engine: Engine) -> None:
    old = [
        f"[rank{rank}]:[E101 00:00:1{rank}.1 ProcessGroupNCCL.cpp:1537] [PG 0 Rank {rank}] Timeout at NCCL work: 5, last enqueued NCCL work: 5, last completed NCCL work: 4."
        for rank in (0, 1)
    ]
    told = [
        f"[rank{rank}]:[E101 00:00:15.1 ProcessGroupNCCL.cpp:1182] [PG 0 Rank {rank}] Received a global timeout from another rank and will start to dump the debug info. Last enqueued NCCL work: {called}, last completed NCCL work: 4."
        for rank, called in ((2, 4), (3, 5))
    ]
    assert judged(engine, old, told).rank == 2


def test_an_answer_about_another_group_accuses_nobody(engine: Engine) -> None:
    """The timeout is in group 1, and the answers are about the default group, in which nothing hangs."""
    found = judged(
        engine,
        timed_out(0, 57, "PG ID 1 PG GUID 1"),
        answered(0, 593, 593, "this local rank"),
        answered(1, 593, 593, " rank 0"),
        answered(2, 593, 593, " rank 0"),
    )
    assert (found.failure, found.rank) == (FailureClass.NCCL_TIMEOUT, None)


def test_whose_own_watchdog_fired_is_not_the_absent_one(engine: Engine) -> None:
    """Rank 1 signalled first and answers itself: its default group is at rest, which clears nobody else either."""
    found = judged(
        engine, timed_out(1), timed_out(0), answered(1, 77, 77, "this local rank"), answered(2, 77, 77)
    )
    assert found.rank == 2


def test_ras_clears_nobody(engine: Engine) -> None:
    found = judged(engine, timed_out(0), timed_out(1), timed_out(3), RAS_OK, answered(2, 77, 77))
    assert (found.failure, found.rank) == (FailureClass.NCCL_TIMEOUT, 2)


def test_different_collectives_under_one_number_are_named(engine: Engine) -> None:
    found = judged(engine, timed_out(0), timed_out(1), timed_out(2, op="ALLGATHER"), timed_out(3))
    assert "different collectives: ALLGATHER on rank 2, BROADCAST on ranks 0, 1, 3" in found.advice[0]
    # The same number in another group is another collective.
    apart = judged(engine, timed_out(0), timed_out(2, group="PG ID 2 PG GUID 7(tp)", op="ALLGATHER"))
    assert not [line for line in apart.advice if "different collectives" in line]


def test_all_in_the_first_collective(engine: Engine) -> None:
    found = judged(engine, *(timed_out(rank, 1) for rank in range(4)))
    assert "NCCL_P2P_DISABLE=1" in found.advice[0]
    later = judged(engine, *(timed_out(rank, 40) for rank in range(4)))
    assert not [line for line in later.advice if "P2P" in line]


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
