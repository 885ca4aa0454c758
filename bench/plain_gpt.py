"""The reference of bench/trainer.py: a plain GPT-2-like model and the plain loop that trains it.

Written from what nanoGPT's README and config say of it, to measure against, not to use: learned positions, LayerNorm
without bias, GELU between 4 × width, the head tied to the embedding, no dropout, AdamW in two groups (fused on CUDA
alone), clipping at 1.0, a random batch from a memory-mapped token file that is fetched while the step runs, a cosine
rate, one line every ten steps. It has no evaluation, no checkpoint, no checks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows
from torch import Tensor, nn

LOG_EVERY = 10


@dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    width: int
    context: int
    vocab_size: int
    batch: int


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a LayerNorm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_1 = nn.LayerNorm(size.width, bias=False)
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.mix = nn.Linear(size.width, size.width, bias=False)
        self.norm_2 = nn.LayerNorm(size.width, bias=False)
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).contiguous().view(batch, length, width))
        output: Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return output


class PlainGPT(nn.Module):
    """Returns the mean loss."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocab_size, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.head = nn.Linear(size.width, size.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("mix.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * size.layers) if residual else 0.02)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            h = layer(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.reshape(-1))


def adamw(model: nn.Module, *, fused: bool) -> torch.optim.AdamW:
    """Decay on matrices alone."""
    held = list(model.parameters())
    groups = [
        {"params": [p for p in held if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in held if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=fused)


def loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Path, size: Size, out: TextIO
) -> Iterator[None]:
    """The plain loop; one step each time it is asked for the next.

    Args:
        model: called with (tokens, targets), gives the mean loss.
        optimizer: its optimizer.
        data: a file of uint16 tokens without a header.
        size: the batch and its length.
        out: where the lines go.
    """
    device = next(model.parameters()).device
    chance = np.random.default_rng(0)

    def fetch() -> tuple[Tensor, Tensor]:
        tokens = np.memmap(data, np.uint16, "r")
        places = chance.integers(0, len(tokens) - size.context, size.batch)
        x = torch.stack([torch.from_numpy(tokens[i : i + size.context].astype(np.int64)) for i in places])
        y = torch.stack(
            [torch.from_numpy(tokens[i + 1 : i + 1 + size.context].astype(np.int64)) for i in places]
        )
        return x.to(device), y.to(device)

    batch = fetch()
    step, since = 0, time.perf_counter()
    while True:
        rate = 1e-4 + 0.5 * (1 + math.cos(math.pi * min(step / 1_000_000, 1.0))) * 9e-4
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(*batch)
        batch = fetch()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        now = time.perf_counter()
        if step % LOG_EVERY == 0:
            print(f"iter {step}: loss {loss.item():.4f}, time {(now - since) * 1000:.2f}ms", file=out)
        since = now
        step += 1
        yield
