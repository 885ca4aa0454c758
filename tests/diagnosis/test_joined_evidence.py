"""Exit codes, signals, stacks, the backend and the disk beside log lines: which of them decides."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import (
    JobEvidence,
    LogSource,
    SeenGroup,
    SeenHang,
)
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.failures import FailureClass
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine
from tests.diagnosis.launcher_logs import trace

STEPS = [f"step {number} loss {3 - number / 100:.3f}" for number in range(1, 21)]
GLOO_TIMEOUT = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
NCCL_TIMEOUT = "[rank{0}]:[E1127 00:10:00.1 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."


def verdict_of(engine: Engine, *logs: list[str], **known: object) -> Verdict:
    sources = tuple(
        LogSource(f"{number}.log", ("".join(f"{line}\n" for line in lines).encode(),))
        for number, lines in enumerate(logs)
    )
    return diagnose(JobEvidence(logs=sources, **known), engine.signatures, engine.matcher)  # type: ignore[arg-type]


# -- a launcher that was ended by a signal -----------------------------------------------------------


# -- the backend beside the stacks -------------------------------------------------------------------


def seen(doing: str, where: str) -> SeenHang:
    waits = SeenGroup((0, 2), "collective", "in all_reduce", "train.py:50")
    at = SeenGroup((1,), doing, where)
    return SeenHang((1,), f"rank 1 {where}", "all_reduce", "stacks.txt", 3, (waits, at), ended_for_it=False)


@pytest.mark.parametrize(
    "hang",
    [seen("stopped", "stopped by a signal"), seen("own", "in read_shard()"), seen("kernel", "in futex")],
    ids=["stopped", "own line", "kernel"],
)
def test_over_gloo_the_stacks_show_a_hang_and_no_timeout_of_nccl(hang: SeenHang, engine: Engine) -> None:
    gloo = verdict_of(engine, [*STEPS, *trace(0, GLOO_TIMEOUT)], launcher_exit=1, hang=hang)
    assert (gloo.failure, gloo.rank) == (FailureClass.HANG, 1)
    nccl = verdict_of(
        engine, [*STEPS, NCCL_TIMEOUT.format(0), NCCL_TIMEOUT.format(2)], launcher_exit=1, hang=hang
    )
    assert (nccl.failure, nccl.rank) == (FailureClass.NCCL_TIMEOUT, 1)


# -- a full disk beside the last words -----------------------------------------------------------------


# -- torchrun's own exceptions ---------------------------------------------------------------------------
