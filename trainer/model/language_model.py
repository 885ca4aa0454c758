"""The network: what all architectures share, and ours. GPT-2's parts are in `gpt2`.

Ours: RMSNorm before each part, rotary positions, normalised queries and keys, squared ReLU, no biases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.config import Config
from trainer.model.elementwise import rms_norm, squared_relu

ROPE_BASE = 10_000.0
LOGITS_AT_ONCE = 1 << 26  # 256 MiB in float32


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides the tensors of a model; two checkpoints fit each other if their shapes are equal."""

    depth: int
    width: int
    head_width: int
    vocab_size: int
    max_seq_len: int
    tied: bool
    arch: str = "rotary"

    def as_record(self) -> dict[str, int | bool | str]:
        """Plain data, for a checkpoint's meta.json."""
        return asdict(self)


def shape_of(config: Config, vocab_size: int) -> Shape:
    """The shape that a config asks for, with the data's vocabulary."""
    return Shape(
        depth=config.depth,
        width=config.width,
        head_width=config.head_width,
        vocab_size=vocab_size,
        max_seq_len=config.max_seq_len,
        tied=config.tie_embeddings or config.arch == "gpt2",
        arch=config.arch,
    )


def model_of(shape: Shape, *, recompute: bool = False) -> LanguageModel:
    """A model of this shape with random weights."""
    if shape.arch == "gpt2":
        from trainer.model.gpt2 import GPT2

        return GPT2(shape, recompute=recompute)
    return GPT(shape, recompute=recompute)


def flops_per_token(shape: Shape, parameters: int, length: int) -> float:
    """Forward and backward FLOPs of a token: 6 a matrix weight, and 12 × depth × width × length for attention.

    The convention of the PaLM paper (appendix B); recomputation is not counted, nor is causality.
    """
    looked_up = 0 if shape.tied else shape.vocab_size * shape.width
    if shape.arch == "gpt2":
        looked_up += shape.max_seq_len * shape.width
    return 6 * (parameters - looked_up) + 12 * shape.depth * shape.width * length


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values mixed by causal attention. Each [batch, heads, length, head_width] -> [batch, length, heads, head_width]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Attention(nn.Module):
    """Causal self-attention. [batch, length, width] -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.head_width
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Mixes positions; `cos` and `sin` are [length, head_width / 2]."""
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, width // self.head_width, self.head_width)
        # Queries and keys in one go: half the operations. Both [batch, length, 2, heads, head_width].
        both = rms_norm(rotate(heads[:, :, :2], cos[:, None, None], sin[:, None, None]))
        q, k = both.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, head_width]
        v = heads[:, :, 2].transpose(1, 2)
        output: Tensor = self.out(attended(q, k, v).reshape(batch, length, width))
        return output


class Block(nn.Module):
    """Attention, then a feed-forward part, each added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, length, width] -> the same."""
        x = x + self.attention(rms_norm(x), cos, sin)
        hidden: Tensor = self.up(rms_norm(x))
        output: Tensor = x + self.down(squared_relu(hidden))
        return output


class LanguageModel(nn.Module):
    """Blocks one after another, and a head. With targets it returns the mean loss, else the logits."""

    def __init__(self, shape: Shape, blocks: Iterable[nn.Module], *, recompute: bool) -> None:
        super().__init__()
        self.shape = shape
        self.recompute = recompute
        self.embed = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        if shape.tied:
            self.head.weight = self.embed.weight

    def enter(self, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the first block gets, [batch, length, width], and what all blocks get besides."""
        raise NotImplementedError

    def leave(self, x: Tensor) -> Tensor:
        """What the head gets of the last block's output."""
        raise NotImplementedError

    def fill(self, name: str, weight: Tensor) -> None:
        """Draws the first values of the parameter of this name into a tensor of its shape."""
        raise NotImplementedError

    def tables(self) -> dict[str, Tensor]:
        """Constants that lie beside the parameters, by the name of their buffer."""
        return {}

    def initialise(self) -> None:
        """Draws all parameters, in their order."""
        for name, weight in self.named_parameters():
            self.fill(name, weight)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Args: tokens and targets, int64 [batch, length]. Returns: [] or [batch, length, vocab]."""
        x, places = self.enter(tokens)
        for block in self.blocks:
            if self.recompute and self.training:
                x = checkpoint(block, x, *places, use_reentrant=False)
            else:
                x = block(x, *places)
        x = self.leave(x)
        if targets is None:
            logits: Tensor = self.head(x).float()
            return logits
        if torch.is_grad_enabled():
            return F.cross_entropy(self.head(x).float().flatten(0, 1), targets.flatten())
        return self._loss_in_parts(x.flatten(0, 1), targets.flatten())

    def _loss_in_parts(self, x: Tensor, targets: Tensor) -> Tensor:
        """The mean loss without all logits at once: of 32 k tokens and 50 k words they are 6.6 GB in float32.

        Args: x, [tokens, width]; targets, [tokens].
        """
        rows = max(LOGITS_AT_ONCE // self.shape.vocab_size, 1)
        parts = (
            F.cross_entropy(self.head(part).float(), wanted, reduction="sum")
            for part, wanted in zip(torch.split(x, rows), torch.split(targets, rows), strict=True)
        )
        return torch.stack(list(parts)).sum() / len(targets)


class GPT(LanguageModel):
    """Our own architecture."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, *, recompute: bool = False) -> None:
        super().__init__(shape, (Block(shape) for _ in range(shape.depth)), recompute=recompute)
        for name, table in self.tables().items():
            self.register_buffer(name, table, persistent=False)
        self.initialise()

    def tables(self) -> dict[str, Tensor]:
        """The rotation of each position."""
        cos, sin = rotary_table(self.shape.max_seq_len, self.shape.head_width)
        return {"cos": cos, "sin": sin}

    def enter(self, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Embedded tokens, and the rotation of their positions."""
        here = slice(tokens.shape[1])
        return rms_norm(self.embed(tokens)), (self.cos[here], self.sin[here])

    def leave(self, x: Tensor) -> Tensor:
        """Normalised once more."""
        return rms_norm(x)

    def fill(self, name: str, weight: Tensor) -> None:
        """Small normal weights; the parts that write to the residual stream start at zero."""
        if name.endswith(("out.weight", "down.weight")):
            nn.init.zeros_(weight)
        else:
            nn.init.normal_(weight, std=1.0 / self.shape.width**0.5)


def rotary_table(length: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, each [length, head_width / 2] (RoFormer, Su et al. 2021)."""
    rates = ROPE_BASE ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), rates)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs of the last dimension by their position; `cos` and `sin` spread over `x` as they are."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
