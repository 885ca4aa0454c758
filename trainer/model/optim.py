"""Optimizer, learning rate, and a slow average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import Config

# What AdamW keeps of a parameter.
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def peak_lr(config: Config, world_size: int) -> float:
    """The peak learning rate, after the scaling by world size that the config asks for."""
    match config.lr_scaling:
        case "linear":
            return config.learning_rate * world_size
        case "sqrt":
            return config.learning_rate * math.sqrt(world_size)
        case _:
            return config.learning_rate


def lr_at(config: Config, peak: float, step: int) -> float:
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


def parameter_groups(config: Config, model: nn.Module) -> list[dict[str, Any]]:
    """Matrices with weight decay, the rest (if any) without."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(config: Config, model: nn.Module, device: torch.device) -> torch.optim.AdamW:
    """AdamW with decay on matrices only; fused, which saves temporaries on a CPU and launches on CUDA."""
    return torch.optim.AdamW(
        parameter_groups(config, model),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=device.type in {"cpu", "cuda"},
    )


def step_unless(optimizer: torch.optim.Optimizer, skip: Tensor) -> None:
    """One step, or none where `skip` (a boolean, on any device) is true: the host does not wait to know which.

    The fused kernels look at `found_inf` themselves, and take back their count of steps (torch/optim/adam.py, _fused_adam), as they
    do for torch.amp.GradScaler.step. They compare it with exactly 1.
    """
    # ZeroRedundancyOptimizer steps an optimizer of its own.
    fused: Any = getattr(optimizer, "optim", optimizer)
    fused.found_inf = skip.float()
    optimizer.step()
    del fused.found_inf


def on_device(numbers: Iterable[Tensor | float], device: torch.device) -> Tensor:
    """Scalars as one float64 vector, [count]. A plain number becomes a fill, not a copy that the host would wait for."""
    return torch.stack(
        [
            each.detach().to(device, torch.float64)
            if isinstance(each, Tensor)
            else torch.full((), each, dtype=torch.float64, device=device)
            for each in numbers
        ]
    )


class Moments:
    """The optimizer's memory by parameter name: independent of order, groups, ranks and sharding."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        self._optimizer = optimizer
        self._model = model

    def named(self) -> dict[str, dict[str, Tensor]]:
        """Moments by parameter name, split as the parameters are."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        return {
            names[id(parameter)]: {key: held[key] for key in MOMENTS if key in held}
            for parameter, held in self._optimizer.state.items()
        }

    def load(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Puts moments back, cut as each parameter is cut here.

        Raises:
            KeyError: a parameter that the optimizer holds is not in `saved`.
        """
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                held = saved[names[id(parameter)]]
                counter = held["step"].to(parameter.device if parameter.is_cuda else "cpu", copy=True)
                moments = {key: cut_like(held[key], parameter) for key in MOMENTS[1:]}
                self._optimizer.state[parameter] = {"step": counter, **moments}


def whole(tensor: Tensor) -> Tensor:
    """A tensor split over ranks, put together; any other as it is."""
    put_together = getattr(tensor, "full_tensor", None)  # a DTensor's; its class costs 0.7 s to import
    together: Tensor = tensor if put_together is None else put_together()
    return together


def cut_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of a whole tensor, on the device of `like` and split over ranks as it is: of the rest not a byte is read."""
    rows = rows_of(like)
    if rows is None:
        return tensor.to(like.device, copy=True)
    mine = torch.empty_like(like)
    local_of(mine).copy_(tensor[rows])
    return mine


def rows_of(like: Tensor) -> slice | None:
    """The rows of the whole that this rank holds of a tensor that FSDP2 has split; None of one that is not split.

    FSDP2 cuts the first dimension as torch.chunk does (torch docs, fully_shard).
    """
    mesh = getattr(like, "device_mesh", None)
    if mesh is None:
        return None
    each = -(-like.shape[0] // mesh.size())
    first = min(mesh.get_local_rank() * each, like.shape[0])
    return slice(first, first + local_of(like).shape[0])


def local_of(tensor: Tensor) -> Tensor:
    """This rank's share of a tensor; all of one that is not split."""
    share = getattr(tensor, "to_local", None)
    local: Tensor = tensor if share is None else share()
    return local.detach()


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


class Ema:
    """A slow average of the weights, which often does better than the last of them.

    average ← decay × average + (1 - decay) × weights, after each step.

    In the first steps the decay is (1 + step) / (10 + step), so that the random start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        self._average = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the weights after `step` steps."""
        keep = min(self._decay, (1 + step) / (10 + step))
        for name, parameter in self._model.named_parameters():
            self._average[name].lerp_(parameter, 1 - keep)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by parameter name, split as the parameters are."""
        return dict(self._average)

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Puts averages back.

        Raises:
            KeyError: one is missing.
        """
        for name, parameter in self._model.named_parameters():
            self._average[name] = cut_like(saved[name], parameter)
