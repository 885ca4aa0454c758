"""The same training however it is cut: over ranks, micro-steps, split state, and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.runs import flags, losses, records, run, train_here
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


def test_ranks_and_accumulation_change_no_loss_over_50_steps(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_iterations": 50, "depth": 2, "warmup_steps": 5}
    for micro in (8, 4, 2):  # accumulation 1, 2, 4
        train_here(tmp_path / f"one{micro}", None, **settings, device_batch_size=micro)
    for micro in (4, 2, 1):
        printed = two_ranks(tmp_path / f"two{micro}", **settings, device_batch_size=micro)
        assert f"batch: {micro} × accumulation {4 // micro} × 2 ranks = 8 samples a step" in printed
    whole = losses(tmp_path / "one8")
    assert len(whole) == 50
    assert whole[50] < whole[1] - 0.5
    for name in ("one4", "one2", "two4", "two2", "two1"):
        assert farthest(whole, losses(tmp_path / name)) <= TOLERANCE, name


def test_two_identical_runs_of_two_ranks_are_equal_to_the_bit(tmp_path: Path) -> None:
    for name in ("a", "b"):
        two_ranks(tmp_path / name, num_iterations=20, device_batch_size=2)
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    for first, second in zip(final_tensors(tmp_path / "a"), final_tensors(tmp_path / "b"), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("written", MODES)
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
    for first, second in zip(reference, final_tensors(tmp_path / "two"), strict=True):
        assert torch.allclose(first, second, atol=TOLERANCE)
    middle = tmp_path / "two" / "ck" / "step_00000008"
    late = {step: loss for step, loss in whole.items() if step > 8}
    train_here(tmp_path / "alone", None, **settings, resume_from=str(middle))
    assert farthest(late, losses(tmp_path / "alone")) <= TOLERANCE
    for read in MODES:
        two_ranks(tmp_path / read, f"--shard={read}", f"--resume_from={middle}", **settings)
        assert farthest(late, losses(tmp_path / read)) <= TOLERANCE, read


def test_out_of_memory_at_16_goes_on_at_8_along_the_unbroken_curve(tmp_path: Path) -> None:
    # About 125 MiB above the short samples' needs at 16, half of it at 8: see configs/demo/demo.toml.
    settings: dict[str, Any] = {
        "depth": 2,
        "model_dim": 128,
        "head_dim": 32,
        "total_batch_size": 8192,
        "max_seq_len": 256,
        "seq_len_schedule": "0:64,4:256",
        "num_iterations": 10,
    }
    cap = {"memory_cap_step": 1, "memory_cap_mib": "400,95"}
    args = flags(**settings, **cap, save_every=2, telemetry_dir="tel", checkpoint_dir="ck")
    failed = run(2, *args, "--device_batch_size=16", cwd=tmp_path)
    assert failed.returncode == 1
    lines = failed.stderr.splitlines()
    assert any("[rank1]" in line and "DefaultCPUAllocator: can't allocate memory" in line for line in lines)
    assert not any("[rank0]" in line and "DefaultCPUAllocator" in line for line in lines)
    assert records(tmp_path, rank=1)[-1]["exit_code"] == 1
    # The last one was still being written when rank 1 failed: rank 0 finishes it on its way out.
    assert [r["step"] for r in records(tmp_path, kind="checkpoint_committed")] == [2, 4]
    done = run(2, *args, "--device_batch_size=8", "--resume_from=auto", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "step 4, 128 samples seen" in done.stdout
    train_here(tmp_path / "whole", None, **settings, device_batch_size=16)
    assert farthest(losses(tmp_path / "whole"), losses(tmp_path)) <= TOLERANCE
