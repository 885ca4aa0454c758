"""Faults on request that need real ranks, and errors that all ranks must hear of alike."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import wait_until
from tests.disks import needs_full_device
from tests.trainer.runs import MAIN, command, environment, flags, records, run, train_here
from trainer.checkpoint import storage


def ends(folder: Path) -> list[dict[str, Any]]:
    """The last record of each rank."""
    return [records(folder, rank=rank)[-1] for rank in (0, 1)]


@pytest.mark.e2e
def test_a_write_that_fails_beside_the_training_ends_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    needs_full_device()
    args = flags(num_iterations=500, save_every=4, telemetry_dir="tel", checkpoint_dir="ck")
    done = run(2, *args, "--fault=disk_full@8", cwd=tmp_path)
    assert done.returncode == 1
    last = ends(tmp_path)
    assert [end["exit_code"] for end in last] == [1, 1]
    assert last[0]["reason"] == last[1]["reason"]
    assert "step_00000008 could not be written: No space left on device" in last[1]["reason"]
    assert last[0]["step"] == last[1]["step"] < 500
    assert [p.name for p in (tmp_path / "ck").iterdir()] == ["step_00000004"]
    assert [r["step"] for r in records(tmp_path, kind="checkpoint_committed")] == [4]


@pytest.mark.e2e
@pytest.mark.parametrize("rank", [None, 1])
def test_debug_names_by_rank_what_gets_no_gradient_before_ddp_gives_its_index(
    rank: int | None, tmp_path: Path
) -> None:
    fault = "unused_parameter@0" + (f":{rank}" if rank is not None else "")
    args = flags(telemetry_dir="tel", checkpoint_dir="ck", fault=fault)
    named = run(2, *args, "--debug", cwd=tmp_path)
    assert named.returncode == 1
    reasons = [end["reason"] for end in ends(tmp_path)]
    assert "without gradient on rank 1: spare; --find_unused_parameters allows them" in reasons[1]
    assert ("rank 0: spare" if rank is None else "on another rank") in reasons[0]
    assert "Expected to have finished reduction" not in named.stderr
    if rank is None:
        plain = run(2, *args, cwd=tmp_path)
        assert plain.returncode == 1
        assert "Expected to have finished reduction" in plain.stderr
        assert run(2, *args, "--find_unused_parameters", "--debug", cwd=tmp_path).returncode == 0


@pytest.mark.e2e
def test_a_mismatched_collective_ends_both_ranks_in_bounded_time(tmp_path: Path) -> None:
    args = flags(telemetry_dir="tel", checkpoint_dir="ck", dist_timeout_s=15, num_iterations=500)
    done = run(2, *args, "--fault=mismatch@3:1", cwd=tmp_path)
    assert done.returncode == 1
    assert all(r["step"] <= 4 for rank in (0, 1) for r in records(tmp_path, rank=rank))


@contextmanager
def started(folder: Path, fault: str) -> Iterator[subprocess.Popen[bytes]]:
    """One rank that has come to step 2 and shall fail there; killed in the end."""
    args = flags(telemetry_dir="tel", checkpoint_dir="ck", num_iterations=100_000, fault=fault)
    with subprocess.Popen(
        command(1, *args),
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            path = folder / "tel" / "rank0.jsonl"
            assert wait_until(lambda: path.exists() and '"step":2,"total' in path.read_text(), 60)
            yield process
        finally:
            process.kill()


@pytest.mark.e2e
def test_a_hang_is_before_the_collectives_and_stays(tmp_path: Path) -> None:
    with started(tmp_path, "hang@2") as process:
        proc = psutil.Process(process.pid)
        assert wait_until(lambda: proc.status() == psutil.STATUS_SLEEPING, 20)
        process.send_signal(signal.SIGTERM)  # a handler sets a flag that nobody reads any more
        assert not wait_until(lambda: process.poll() is not None, 0.5)
        assert max(r["step"] for r in records(tmp_path)) == 2


@pytest.mark.e2e
def test_sigstop_freezes_the_process_and_sigcont_lets_it_go_on(tmp_path: Path) -> None:
    with started(tmp_path, "sigstop@2") as process:
        proc = psutil.Process(process.pid)
        assert wait_until(lambda: proc.status() == psutil.STATUS_STOPPED, 20)
        os.kill(process.pid, signal.SIGCONT)
        assert wait_until(lambda: max(r["step"] for r in records(tmp_path)) > 2, 60)


def test_a_slow_rank_is_slow_from_its_step_on(tmp_path: Path) -> None:
    train_here(tmp_path, num_iterations=4, fault="slow:0.3@2")
    times = {r["step"]: r["t_mono"] for r in records(tmp_path, kind="step") if "loss" in r}
    assert times[3] - times[2] >= 0.3
    assert times[4] - times[3] >= 0.3


@pytest.mark.e2e
def test_an_abort_at_exit_comes_after_all_work(tmp_path: Path) -> None:
    done = run(1, *flags(telemetry_dir="tel", checkpoint_dir="ck", fault="abort_at_exit@0"), cwd=tmp_path)
    assert done.returncode == -signal.SIGABRT
    assert "terminate called without an active exception" in done.stderr
    assert records(tmp_path, kind="checkpoint_committed")[-1]["final"]
    assert storage.newest(tmp_path / "ck")[0] == tmp_path / "ck" / "step_00000006"


def test_every_fault_is_told_of_where_the_flag_is_explained() -> None:
    from trainer.faults import FaultKind

    text = (MAIN.parents[1] / "docs" / "telemetry.md").read_text()
    assert all(f"`{kind}" in text for kind in FaultKind)
