"""The same training however it is cut: over ranks, micro-steps, split state, and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiers import first
from tests.trainer.runs import flags, losses, run, train_here
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
