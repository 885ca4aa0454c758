"""The host launches the optimizer's step without having read a number of this step from the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.trainer.runs import records, train_here
from trainer.model.optim import step_unless


def test_a_step_that_is_not_finite_changes_neither_weights_nor_moments() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    weight.grad = torch.ones(3)
    step_unless(optimizer, torch.tensor(False))
    before = (weight.detach().clone(), {k: v.clone() for k, v in optimizer.state[weight].items()})
    weight.grad = torch.tensor([float("nan"), 1.0, 1.0])
    step_unless(optimizer, torch.tensor(True))
    assert torch.equal(weight, before[0])
    assert all(torch.equal(optimizer.state[weight][key], held) for key, held in before[1].items())
    assert not hasattr(optimizer, "found_inf")  # whoever steps it next means it


def test_an_overflow_of_float16_skips_the_step_and_halves_the_scale(tmp_path: Path) -> None:
    fault: dict[str, Any] = {"fault": "nan@1", "skip_invalid_loss": True}
    assert train_here(tmp_path, dtype="float16", num_iterations=3, **fault) == 0
    scales = [step["loss_scale"] for step in records(tmp_path, kind="step") if "loss" in step]
    assert scales == [65536.0, 32768.0, 32768.0]
