"""The host launches the optimizer's step without having read a number of this step from the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import trainer.loop
from tests.trainer.runs import records, train_here
from trainer.model.optim import step_unless

# Ops by which the host learns a value, and so waits for the device.
READS = {"tolist", "aten._local_scalar_dense", "aten.equal", "aten.is_nonzero", "aten.nonzero"}


class Order(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of reads, optimizer steps and backward passes, in their order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).rpartition(".")[0]
        if name in READS or name in {"aten._fused_adamw_", "aten.embedding_dense_backward"}:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def test_nothing_is_read_between_backward_and_the_optimizers_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, step = Order(), trainer.loop.train_step

    def watched(*args: Any) -> Any:
        with order:
            return step(*args)

    def tolist(tensor: torch.Tensor) -> Any:
        order.seen.append("tolist")  # on a CPU it is no op, and the mode does not see it
        return read(tensor)

    read = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    monkeypatch.setattr(trainer.loop, "train_step", watched)
    assert train_here(tmp_path, num_iterations=2, gradient_clip_val=1.0) == 0
    *_, step_of_first, step_of_last = [n for n, name in enumerate(order.seen) if name == "aten._fused_adamw_"]
    until_step = order.seen[step_of_first:step_of_last]
    backward = max(n for n, name in enumerate(until_step) if name == "aten.embedding_dense_backward")
    assert not READS & set(until_step[backward:])
    assert "tolist" in order.seen[step_of_last:]  # once it is launched the numbers are read


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
