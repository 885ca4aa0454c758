"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, biases, GELU, the head tied to the embedding; and its weights from a file.

The same computation as transformers' GPT2LMHeadModel without dropout, and as nanoGPT's model but for the form of GELU: OpenAI's is the tanh one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from trainer.config import UsageError
from trainer.model.elementwise import gelu
from trainer.model.language_model import LanguageModel, Shape, attended

# As transformers names them, beside the name here. It keeps matrices of products as [in, out] ("Conv1D").
_OUTSIDE: Final = {
    "wte.weight": "embed.weight",
    "wpe.weight": "positions.weight",
    "ln_f.weight": "norm.weight",
    "ln_f.bias": "norm.bias",
    "lm_head.weight": "head.weight",
}
_PARTS: Final = {
    "ln_1": "norm_1",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out",
    "ln_2": "norm_2",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}
# Causal masks, which old files hold too.
_MASK: Final = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")


class Attention(nn.Module):
    """Causal self-attention. [batch, length, width] -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.head_width
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes positions."""
        batch, length, width = x.shape
        q, k, v = (  # each [batch, heads, length, head_width]
            part.view(batch, length, -1, self.head_width).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        output: Tensor = self.out(attended(q, k, v).reshape(batch, length, width))
        return output


class Block(nn.Module):
    """Attention, then a feed-forward part, each behind a LayerNorm and added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] -> the same."""
        x = x + self.attention(self.norm_1(x))
        hidden = gelu(self.up(self.norm_2(x)))
        output: Tensor = x + self.down(hidden)
        return output


class GPT2(LanguageModel):
    """The architecture of GPT-2; `shape.max_seq_len` is the number of its positions."""

    def __init__(self, shape: Shape, *, recompute: bool = False) -> None:
        super().__init__(shape, (Block(shape) for _ in range(shape.depth)), recompute=recompute)
        self.positions = nn.Embedding(shape.max_seq_len, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.initialise()

    def enter(self, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Embedded tokens and positions, added; blocks get nothing besides."""
        return self.embed(tokens) + self.positions.weight[: tokens.shape[1]], ()

    def leave(self, x: Tensor) -> Tensor:
        """Normalised."""
        normal: Tensor = self.norm(x)
        return normal

    def fill(self, name: str, weight: Tensor) -> None:
        """As GPT-2: deviation 0.02, less for what writes to the residual stream, the more such parts there are."""
        if name.endswith("bias"):
            nn.init.zeros_(weight)
        elif "norm" in name:
            nn.init.ones_(weight)
        else:
            parts = 2 * self.shape.depth if name.endswith(("out.weight", "down.weight")) else 1
            nn.init.normal_(weight, std=0.02 / parts**0.5)


def weights_from(path: Path, shape: Shape) -> Mapping[str, Tensor]:
    """The weights of a safetensors file that transformers wrote, by their names here. Of more positions the first are taken.

    Raises:
        UsageError: it cannot be read, or is no GPT-2 of this shape.
    """
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise UsageError("init_from needs safetensors: pip install safetensors") from None
    try:
        held = load_file(path)
    except OSError as error:
        raise UsageError(f"init_from {path}: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - the library's own class, of a file that is another thing
        raise UsageError(f"init_from {path}: no safetensors file: {error}") from None
    found = {}
    for given, tensor in held.items():
        name = given.removeprefix("transformer.")
        if not _MASK.fullmatch(name):
            found[_name_here(path, name)] = tensor.T if _is_turned(name) else tensor
    if (positions := found.get("positions.weight")) is not None:
        found["positions.weight"] = positions[: shape.max_seq_len]
    if "embed.weight" in found:
        found.setdefault("head.weight", found["embed.weight"])
    with torch.device("meta"):
        wanted = GPT2(shape).state_dict()
    for name in sorted(wanted.keys() | found.keys()):
        theirs = list(found[name].shape) if name in found else "missing"
        ours = list(wanted[name].shape) if name in wanted else "no part of it"
        if theirs != ours:
            raise UsageError(
                f"init_from {path}: {name} is {theirs}, in this model {ours}: set depth, model_dim, vocab_size "
                f"({_rows(found, 'embed.weight')} in the file) and max_seq_len (at most {_rows(held, 'wpe.weight')}) as it has them"
            )
    return {name: tensor.float() for name, tensor in found.items()}


def _is_turned(name: str) -> bool:
    return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))


def _name_here(path: Path, name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match = re.fullmatch(r"h\.(\d+)\.(.+)\.(weight|bias)", name)
    if match is None or match[2] not in _PARTS:
        raise UsageError(f"init_from {path}: holds {name!a}, which no GPT-2 has")
    return f"blocks.{match[1]}.{_PARTS[match[2]]}.{match[3]}"


def _rows(held: Mapping[str, Tensor], ending: str) -> str:
    return next((str(len(tensor)) for name, tensor in held.items() if name.endswith(ending)), "none")
