"""The network, its number types, its learning rate."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiers import first
from tests.trainer.runs import flags, losses, run, train_here
from trainer.config import Config
from trainer.model.elementwise import gelu, rms_norm, squared_relu
from trainer.model.language_model import GPT, Shape, flops_per_token
from trainer.model.optim import lr_at

SHAPE = Shape(depth=2, width=32, head_width=16, vocab_size=64, max_seq_len=16, tied=False)


def test_no_position_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model = GPT(SHAPE)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.randint(0, 64, (1, 16))
    changed = tokens.clone()
    changed[0, 9:] = (changed[0, 9:] + 1) % 64
    with torch.no_grad():
        first, second = model(tokens), model(changed)
    assert torch.allclose(first[0, :9], second[0, :9], atol=1e-5)
    assert not torch.allclose(first[0, 9:], second[0, 9:], atol=1e-3)


def test_parts_with_a_gradient_of_their_own_agree_with_torch() -> None:
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rms_norm, (x,))
    assert torch.autograd.gradcheck(squared_relu, (x,))
    assert torch.autograd.gradcheck(gelu, (x,))
    x, y = (torch.linspace(-3, 4, 96).view(4, 24).requires_grad_() for _ in range(2))
    pairs: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
        (rms_norm, lambda part: torch.nn.functional.rms_norm(part, (24,))),
        (squared_relu, lambda part: torch.relu(part).square()),
        (gelu, lambda part: torch.nn.functional.gelu(part, approximate="tanh")),
    ]
    for ours, theirs in pairs:
        assert torch.allclose(ours(x), theirs(y), rtol=1e-6, atol=1e-7)
        weight = torch.arange(96.0).view(4, 24).cos()
        (mine,) = torch.autograd.grad((ours(x) * weight).sum(), x)
        (known,) = torch.autograd.grad((theirs(y) * weight).sum(), y)
        assert torch.allclose(mine, known, rtol=1e-5, atol=1e-6)


def test_tied_embeddings_and_the_count_of_operations() -> None:
    tied = GPT(Shape(2, 32, 16, 64, 16, tied=True))
    free = GPT(SHAPE)
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, free)]
    assert count[1] - count[0] == 64 * 32
    # The embedding is a look-up: 6 operations for each of the other weights, and the attention's share.
    assert flops_per_token(SHAPE, count[1], 16) == 6 * (count[1] - 64 * 32) + 12 * 2 * 32 * 16


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
def test_the_learning_rate_warms_up_and_comes_down(schedule: str) -> None:
    config = Config(lr_schedule=schedule, warmup_steps=10, num_iterations=100, learning_rate=1.0)
    rates = [lr_at(config, 1.0, step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert max(rates) == 1.0
    assert rates == pytest.approx(sorted(rates[:10]) + sorted(rates[10:], reverse=True))
    assert rates[-1] == pytest.approx(1.0 if schedule == "constant" else 0.1, abs=0.05)
    assert rates[50] == (1.0 if schedule != "cosine" else pytest.approx(0.6, abs=0.1))


@pytest.mark.parametrize(
    "settings", first(1, [{"dtype": "bfloat16"}, {"mixed_precision": True}, {"dtype": "float16"}])
)
def test_half_precision_learns_alike(settings: dict[str, Any], tmp_path: Path) -> None:
    train_here(tmp_path / "full", num_iterations=10)
    train_here(tmp_path / "half", num_iterations=10, **settings)
    full, half = losses(tmp_path / "full"), losses(tmp_path / "half")
    assert half != full
    assert all(abs(half[k] - full[k]) < 0.05 for k in full)


def test_recomputed_blocks_change_no_loss(tmp_path: Path) -> None:
    train_here(tmp_path / "a")
    train_here(tmp_path / "b", gradient_checkpointing=True)
    assert losses(tmp_path / "a") == pytest.approx(losses(tmp_path / "b"), abs=1e-6)


def test_a_loss_in_parts_is_the_same_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = GPT(SHAPE)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens, targets = torch.randint(0, 64, (2, 3, 16))
    whole = model(tokens, targets).detach()
    monkeypatch.setattr(
        "trainer.model.language_model.LOGITS_AT_ONCE", 64 * 7
    )  # 48 tokens: seven at once, and a rest
    with torch.no_grad():
        assert torch.allclose(model(tokens, targets), whole, atol=1e-6)


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compiled_blocks_are_the_same_model_and_resume(tmp_path: Path) -> None:
    steps: dict[str, Any] = {"num_iterations": 4, "eval_every": 2, "lr_schedule": "constant"}
    train_here(tmp_path / "eager", **steps)
    (tmp_path / "compiled").mkdir()
    folders = {"telemetry_dir": "tel", "checkpoint_dir": "ck"}
    half = run(
        1, *flags(**{**steps, "num_iterations": 2}, **folders, compile="on"), cwd=tmp_path / "compiled"
    )
    assert half.returncode == 0, half.stderr
    assert "torch.compile: on" in half.stdout
    train_here(tmp_path / "compiled", **steps, resume_from="auto")
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "eager"), abs=1e-4)
