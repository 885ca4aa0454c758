"""The network, its number types, its learning rate; and GPT-2, computed a second time and loaded from a file as transformers writes it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows
from safetensors.torch import save_file
from torch import Tensor

from tests.tiers import first
from tests.trainer.runs import flags, losses, run, train_here
from trainer.checkpoint.saving import put_weights
from trainer.config import Config, UsageError, check
from trainer.model.elementwise import gelu, rms_norm, squared_relu
from trainer.model.gpt2 import weights_from
from trainer.model.language_model import GPT, LanguageModel, Shape, flops_per_token, model_of
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


DEPTH, WIDTH, HEADS, WORDS, LENGTH = 2, 32, 4, 50, 16
GPT2_SHAPE = Shape(DEPTH, WIDTH, WIDTH // HEADS, WORDS, LENGTH, tied=True, arch="gpt2")


def published(path: Path, *, prefix: str = "transformer.", positions: int = LENGTH) -> dict[str, Tensor]:
    """Random weights, named and turned as transformers writes them."""
    torch.manual_seed(0)
    sizes = {"wte.weight": [WORDS, WIDTH], "wpe.weight": [positions, WIDTH]}
    for at in range(DEPTH):
        for part in ("ln_1", "ln_2"):
            sizes |= {f"h.{at}.{part}.weight": [WIDTH], f"h.{at}.{part}.bias": [WIDTH]}
        for part, (inner, outer) in {
            "attn.c_attn": (1, 3),
            "attn.c_proj": (1, 1),
            "mlp.c_fc": (1, 4),
            "mlp.c_proj": (4, 1),
        }.items():
            sizes[f"h.{at}.{part}.weight"] = [inner * WIDTH, outer * WIDTH]
            sizes[f"h.{at}.{part}.bias"] = [outer * WIDTH]
    sizes |= {"ln_f.weight": [WIDTH], "ln_f.bias": [WIDTH]}
    held = {name: torch.randn(size) * 0.6 for name, size in sizes.items()}
    extra = {"h.0.attn.bias": torch.ones(1, 1, positions, positions)}  # old files hold their masks
    save_file({prefix + name: tensor for name, tensor in (held | extra).items()}, path)
    return held


def computed(w: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """GPT-2's logits of [length] tokens, from its description; attention head by head, without a fused kernel."""
    x = w["wte.weight"][tokens] + w["wpe.weight"][: len(tokens)]
    mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    for at in range(DEPTH):
        q, k, v = linear(norm(x, f"h.{at}.ln_1"), f"h.{at}.attn.c_attn").chunk(3, -1)
        heads = []
        for each in range(HEADS):
            cut = slice(each * WIDTH // HEADS, (each + 1) * WIDTH // HEADS)
            scores = q[:, cut] @ k[:, cut].T / (WIDTH // HEADS) ** 0.5 + mask
            heads.append(scores.softmax(-1) @ v[:, cut])
        x = x + linear(torch.cat(heads, -1), f"h.{at}.attn.c_proj")
        up = linear(norm(x, f"h.{at}.ln_2"), f"h.{at}.mlp.c_fc")
        gelu = 0.5 * up * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (up + 0.044715 * up**3)))
        x = x + linear(gelu, f"h.{at}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def loaded(path: Path, shape: Shape = GPT2_SHAPE) -> LanguageModel:
    model = model_of(shape).eval()
    put_weights(model, weights_from(path, shape))
    return model


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_weights_from_a_file_give_the_published_computation(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "model.safetensors"
    known = published(path, prefix=prefix, positions=LENGTH + 8)
    tokens = torch.randint(0, WORDS, (LENGTH,))
    with torch.no_grad():
        found = loaded(path)(tokens[None])[0]
    assert torch.allclose(found, computed(known, tokens), atol=1e-4)


def test_training_starts_from_the_files_weights_and_resumes_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    published(path)
    data = tmp_path / "tokens.bin"
    np.tile(np.arange(WORDS, dtype=np.uint16), 100).tofile(data)
    same: dict[str, Any] = {
        "arch": "gpt2", "depth": DEPTH, "model_dim": WIDTH, "head_dim": WIDTH // HEADS, "vocab_size": WORDS,
        "max_seq_len": LENGTH, "total_batch_size": 8 * LENGTH, "train_data_path": str(data), "data_dtype": "uint16",
        "init_from": str(path), "lr_schedule": "constant",
    }  # fmt: skip
    train_here(tmp_path / "whole", **same, num_iterations=4)
    (tmp_path / "cut").mkdir()
    train_here(tmp_path / "cut", **same, num_iterations=2)
    train_here(tmp_path / "cut", **same, num_iterations=4, resume_from="auto")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    with torch.no_grad():
        row = torch.arange(WORDS).repeat(2)
        possible = [loaded(path)(row[None, at : at + 16], row[None, at + 1 : at + 17]) for at in range(WORDS)]
    assert float(min(possible)) < losses(tmp_path / "whole")[1] < float(max(possible))
    assert losses(tmp_path / "whole")[1] > 5, "not the 3.9 of a random start"


def test_weights_that_do_not_fit_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    published(path)
    with pytest.raises(
        UsageError, match=r"embed.weight is \[50, 32\], in this model \[64, 32\].*50 in the file"
    ):
        weights_from(path, Shape(DEPTH, WIDTH, 8, 64, LENGTH, tied=True, arch="gpt2"))
    with pytest.raises(UsageError, match=r"blocks\.2.*missing"):
        weights_from(path, Shape(3, WIDTH, 8, WORDS, LENGTH, tied=True, arch="gpt2"))
    save_file({"model.layers.0.weight": torch.zeros(2)}, path)
    with pytest.raises(UsageError, match="which no GPT-2 has"):
        weights_from(path, GPT2_SHAPE)
    path.write_bytes(b"no such file")
    with pytest.raises(UsageError, match="no safetensors file"):
        weights_from(path, GPT2_SHAPE)
    with pytest.raises(UsageError, match="needs arch gpt2"):
        check(Config(init_from=str(path)))
