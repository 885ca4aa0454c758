"""The same training however it is cut and whenever it is killed; errors that all ranks hear of alike. Each fault under stoker: test_recovery_matrix.py."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.conftest import wait_until
from tests.disks import needs_full_device
from tests.tiers import first
from tests.trainer.runs import command, environment, flags, losses, records, run, train_here
from trainer.checkpoint import storage

pytestmark = pytest.mark.e2e
TOLERANCE = 1e-4
MODES = ("none", "zero1", "fsdp2")


def two_ranks(folder: Path, *more: str, **settings: Any) -> str:
    """Two real ranks to their end; telemetry and checkpoints in `folder`. Returns what rank 0 printed."""
    folder.mkdir(exist_ok=True)
    done = run(2, *flags(telemetry_dir="tel", checkpoint_dir="ck", **settings), *more, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def farthest(one: dict[int, float], other: dict[int, float]) -> float:
    assert one.keys() == other.keys()
    return max(abs(one[step] - other[step]) for step in one)


def final_tensors(folder: Path) -> list[torch.Tensor]:
    path, _ = storage.newest(folder / "ck")
    assert path is not None
    state = storage.load(path).state
    moments = [held[key] for _, held in sorted(state["optimizer"].items()) for key in sorted(held)]
    return [tensor for _, tensor in sorted(state["model"].items())] + moments


@pytest.mark.thorough
def test_two_identical_runs_of_two_ranks_are_equal_to_the_bit(tmp_path: Path) -> None:
    for name in ("a", "b"):
        two_ranks(tmp_path / name, num_iterations=20, device_batch_size=2)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    for one, other in zip(final_tensors(tmp_path / "a"), final_tensors(tmp_path / "b"), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("written", first(1, reversed(MODES)))
def test_split_state_agrees_with_one_rank_and_its_checkpoint_loads_in_each(
    written: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"num_iterations": 16, "depth": 2, "device_batch_size": 2, "ema_decay": 0.9}
    evaluation: dict[str, Any] = {"eval_every": 8, "eval_samples": 5}
    train_here(tmp_path / "one", None, **settings)
    whole = losses(tmp_path / "one")
    two_ranks(tmp_path / "two", f"--shard={written}", **settings, **evaluation, save_every=8)
    assert farthest(whole, losses(tmp_path / "two")) <= TOLERANCE
    reference = final_tensors(tmp_path / "one")
    for one, other in zip(reference, final_tensors(tmp_path / "two"), strict=True):
        assert torch.allclose(one, other, atol=TOLERANCE)
    middle = tmp_path / "two" / "ck" / "step_00000008"
    late = {step: loss for step, loss in whole.items() if step > 8}
    train_here(tmp_path / "alone", None, **settings, resume_from=str(middle))
    assert farthest(late, losses(tmp_path / "alone")) <= TOLERANCE
    for read in MODES:
        two_ranks(tmp_path / read, f"--shard={read}", f"--resume_from={middle}", **settings)
        assert farthest(late, losses(tmp_path / read)) <= TOLERANCE, read


def ends(folder: Path) -> list[dict[str, Any]]:
    """The last record of each rank."""
    return [records(folder, rank=rank)[-1] for rank in (0, 1)]


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


def test_debug_names_by_rank_what_gets_no_gradient_before_ddp_gives_its_index(tmp_path: Path) -> None:
    args = flags(telemetry_dir="tel", checkpoint_dir="ck", fault="unused_parameter@0")
    named = run(2, *args, "--debug", cwd=tmp_path)
    assert named.returncode == 1
    reasons = [end["reason"] for end in ends(tmp_path)]
    assert "without gradient on rank 1: spare; --find_unused_parameters allows them" in reasons[1]
    assert "rank 0: spare" in reasons[0]
    assert "Expected to have finished reduction" not in named.stderr
    plain = run(2, *args, cwd=tmp_path)
    assert plain.returncode == 1
    assert "Expected to have finished reduction" in plain.stderr
    assert run(2, *args, "--find_unused_parameters", "--debug", cwd=tmp_path).returncode == 0


# Random moments: `bench/fault_run.py --job trainer`. A checkpoint of 12 MB: its write lasts some tens of milliseconds.
SETTINGS: dict[str, Any] = {
    "num_iterations": 40,
    "save_every": 5,
    "depth": 2,
    "model_dim": 192,
    "head_dim": 32,
}


def kill_tree(pid: int) -> None:
    """SIGKILL to torchrun and all ranks: each is a session leader of its own."""
    parent = psutil.Process(pid)
    tree = [*parent.children(recursive=True), parent]
    for process in tree:
        process.kill()
    psutil.wait_procs(tree, timeout=30)


def test_sigkill_in_a_save_resumes_to_the_same_losses(tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    args = flags(**SETTINGS, telemetry_dir="tel", checkpoint_dir="ck")
    with subprocess.Popen(
        command(2, *args),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert wait_until(lambda: any(folder.glob("step_0000002*.tmp")), 120, poll_s=0.0005)
        kill_tree(process.pid)
    newest, passed_over = storage.newest(folder)
    assert passed_over == []
    assert newest is not None
    assert storage.step_of(newest) < 25
    done = run(2, *args, "--resume_from=auto", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"resumed from {newest}: step" in done.stdout
    assert not list(folder.glob("*.tmp"))
    train_here(tmp_path / "whole", None, **SETTINGS)
    unbroken, resumed = losses(tmp_path / "whole"), losses(tmp_path)
    assert unbroken.keys() == resumed.keys()
    assert all(abs(unbroken[k] - resumed[k]) <= 1e-4 for k in unbroken)
