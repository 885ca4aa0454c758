"""Saving beside the training from a GPU: through page-locked memory, whole, and while steps continue."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.runs import losses, train_here
from trainer.checkpoint import storage
from trainer.checkpoint.writer import Staging, collect

pytestmark = pytest.mark.gpu


def test_the_copy_is_page_locked_and_complete_after_finish() -> None:
    weight = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    staging = Staging()
    copied = collect({"w": weight}, staging, keep=True)
    staging.finish()
    weight.zero_()
    assert copied["w"].is_pinned()
    assert torch.equal(copied["w"], torch.arange(1 << 20, dtype=torch.float32))


def test_checkpoints_from_a_gpu_are_alike_in_the_step_and_beside_it(tmp_path: Path) -> None:
    for name, beside in (("now", False), ("later", True)):
        train_here(tmp_path / name, None, device="cuda", save_every=2, async_save=beside, compile="off")
    assert losses(tmp_path / "now") == pytest.approx(losses(tmp_path / "later"), abs=1e-4)
    for step in (2, 4, 6):
        states = [
            storage.load(storage.folder_of(tmp_path / name / "ck", step)).state for name in ("now", "later")
        ]
        for key, tensor in states[0]["model"].items():
            assert torch.allclose(tensor, states[1]["model"][key], atol=1e-4)
        assert states[0]["rng_cuda"] is not None
