"""Optimizer and learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainer.config import Config


def peak_rate(config: Config, world_size: int) -> float:
    """The peak learning rate, after the scaling by world size that the config asks for."""
    match config.lr_scaling:
        case "linear":
            return config.learning_rate * world_size
        case "sqrt":
            return config.learning_rate * math.sqrt(world_size)
        case _:
            return config.learning_rate


def rate_at(config: Config, peak: float, step: int) -> float:
    """The learning rate of `step` (from 0): linear warm-up, then cosine, wsd or constant."""
    if step < config.warmup_steps:
        return peak * (step + 1) / config.warmup_steps
    last, total = peak * config.min_lr_ratio, config.num_iterations
    match config.lr_schedule:
        case "cosine":
            done = (step - config.warmup_steps) / max(total - config.warmup_steps, 1)
            return last + (peak - last) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        case "wsd":
            steps_down = max(int(total * config.cooldown_ratio), 1)
            left = min(max((total - step) / steps_down, 0.0), 1.0)
            return last + (peak - last) * left
        case _:
            return peak


def build_optimizer(config: Config, model: nn.Module, device: torch.device) -> torch.optim.AdamW:
    """AdamW with decay on matrices only; fused, which saves temporaries on a CPU and launches on CUDA."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=device.type in {"cpu", "cuda"},
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
