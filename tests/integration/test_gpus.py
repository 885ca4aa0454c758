"""Runs on a machine with GPUs: NVML's own library answers, in C (tests/fakes/nvml.c), and everything above it is stoker's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.records import FailureClass
from supervisor.run.series import GPU, SeriesReader
from tests.conftest import not_none, wait_until
from tests.fakes.nvml import ALL_FUNCTIONS, GIB, Card, StandIn
from tests.integration.harness import background, facts, only_run, state_of, stoker, wait_for_run

LOST = 15
# Steps until a file appears; then the words of a process whose GPU has gone.
JOB = """
import pathlib, sys, time
for step in range(100_000):
    print(f"step {step} loss {3 / (step + 1):.3f}", flush=True)
    time.sleep(0.02)
    if pathlib.Path("fall").exists():
        sys.exit("RuntimeError: CUDA error: unspecified launch failure")
"""
TWENTY_STEPS = """
import time
for step in range(1, 21):
    print(f"step {step} loss {3 / step:.3f}", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def machine(nvml: StandIn, tmp_path: Path) -> StandIn:
    (tmp_path / "job.py").write_text(JOB)
    nvml.show(
        Card("GPU-aaaa", util=87, used=20 * GIB),
        Card("GPU-bbbb", util=12, used=3 * GIB, processes=[(1, 2 * GIB)]),
    )
    return nvml


def gpu_rows(root: Path) -> dict[str, list[dict[str, float | None]]]:
    """The values of each GPU's series so far, in order."""
    rows: dict[str, list[dict[str, float | None]]] = {}
    for sample in SeriesReader(root, GPU).read():
        rows.setdefault(sample.k, []).append(sample.v)
    return rows


@pytest.mark.fault(
    "recovery",
    "a GPU falls off the bus under a run",
    "its Xid, its loss and the verdict show a hardware fault",
)
def test_a_gpu_that_falls_off_the_bus_is_seen_and_decides_the_verdict(
    machine: StandIn, tmp_path: Path
) -> None:
    with background("run", "--no-ui", "--", "python", "job.py", cwd=tmp_path, env=machine.env) as job:
        run = wait_for_run(tmp_path)
        series = run.node().series

        def last(card: str, name: str) -> float | None:
            found = gpu_rows(series).get(card, [])
            return found[-1].get(name) if found else None

        assert wait_until(lambda: last("0", "util_ratio") == 0.87, 60)
        assert last("1", "memory_used_bytes") == 3 * GIB
        machine.cards[1].util = 55
        machine.show()
        assert wait_until(lambda: last("1", "util_ratio") == 0.55, 60)
        machine.xids.append((0, 79))
        machine.cards[0].fails[ALL_FUNCTIONS] = LOST
        machine.show()
        assert wait_until(lambda: last("0", "lost") == 1.0, 60)
        (tmp_path / "fall").write_text("")
        assert job.wait(60) == 1
    advice = {fact.code: fact.text for fact in facts(run) if isinstance(fact, ev.Advisory)}
    assert advice["gpu_lost_0_"] == "GPU 0 is lost: it does not answer the driver"
    assert advice["gpu_xid_0_79"] == "GPU 0: Xid 79"
    view = not_none(state_of(run).attempt)
    assert not_none(view.verdict).failure is FailureClass.GPU_FAULT


@pytest.mark.e2e
def test_memory_far_from_what_the_job_file_expects_is_said_at_the_end(nvml: StandIn, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(TWENTY_STEPS)
    (tmp_path / "job.toml").write_text(
        '[run]\nscript = "job.py"\nargs = ["--bs", "8", "--acc", "1"]\nexpected_memory_gib = 40\n'
        '[batch]\nknob = "--bs"\naccumulation_knob = "--acc"\nscope = "per_rank"\n'
    )
    nvml.show(Card("GPU-aaaa", util=87, used=20 * GIB))
    done = stoker(
        "run",
        "--trial",
        "--no-ui",
        "--python",
        sys.executable,
        "--config",
        "job.toml",
        cwd=tmp_path,
        env=nvml.env,
    )
    assert done.code == 0, done.out + done.err
    advice = {fact.code: fact.text for fact in facts(only_run(tmp_path)) if isinstance(fact, ev.Advisory)}
    text = "GPU memory: 20.0 GiB (25 %) at most where 40.0 GiB (50 %) were expected"
    assert advice["memory_unexpected"].startswith(text)
    assert f"note      {text}" in done.out
    assert "memory    GPU 0: 20.0/80 GiB at most, 25 %" in done.out
