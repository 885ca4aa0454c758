"""GPT-2: the computation written out a second time, and its weights from a file as transformers writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows
from safetensors.torch import save_file
from torch import Tensor

from tests.trainer.runs import losses, train_here
from trainer.checkpoint.saving import put_weights
from trainer.config import Config, UsageError, check
from trainer.model.gpt2 import weights_from
from trainer.model.language_model import LanguageModel, Shape, model_of

DEPTH, WIDTH, HEADS, WORDS, LENGTH = 2, 32, 4, 50, 16
SHAPE = Shape(DEPTH, WIDTH, WIDTH // HEADS, WORDS, LENGTH, tied=True, arch="gpt2")


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


def loaded(path: Path, shape: Shape = SHAPE) -> LanguageModel:
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
        weights_from(path, SHAPE)
    path.write_bytes(b"no such file")
    with pytest.raises(UsageError, match="no safetensors file"):
        weights_from(path, SHAPE)
    with pytest.raises(UsageError, match="needs arch gpt2"):
        check(Config(init_from=str(path)))
