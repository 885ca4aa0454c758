"""What is split over ranks: nothing (DDP), the optimizer's memory (ZeRO-1), or all tensors (FSDP2).

Checkpoints hold tensors by name, whole or (FSDP2) by rows, so that one written by any of the three loads in each.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from inspect import signature
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config
from trainer.distributed.group import Device, Group
from trainer.model.language_model import LanguageModel
from trainer.model.optim import MOMENTS, Moments, build_optimizer, parameter_groups

M_MMAP_THRESHOLD: Final = -3  # malloc.h


def split_model(
    config: Config, bare: LanguageModel, device: Device, group: Group, compute: torch.dtype
) -> None:
    """Draws the first weights of a model that has none yet; FSDP2 splits them over the ranks on the way, block by block.

    So no more is held whole than one block and what lies outside the blocks. Each rank draws all weights, in the order in which one
    process would: the model is the same for any number of ranks, and nothing is sent.
    """
    where = device.torch_device
    if config.shard != "fsdp2":
        _draw(bare, where, lambda _block: None)
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if where.type == "cpu":
        _give_freed_memory_back()
    mesh = init_device_mesh(where.type, (group.world_size,))
    # Weights are gathered in the type that products are computed in, half the bytes; gradients are summed in float32.
    half = compute is not torch.float32
    policy = MixedPrecisionPolicy(compute, torch.float32) if half else MixedPrecisionPolicy()
    _draw(bare, where, lambda block: fully_shard(block, mesh=mesh, mp_policy=policy))
    fully_shard(bare, mesh=mesh, mp_policy=policy)


def _give_freed_memory_back() -> None:
    """Lets glibc map each large tensor by itself, so that a gathered weight is given back when it is freed.

    Its threshold grows to 32 MiB by itself (mallopt(3), M_MMAP_THRESHOLD): of two ranks of a model of 200 M parameters each held 2.9 GB
    after two steps in place of 1.5, in holes between what stays.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)


def _draw(bare: LanguageModel, where: torch.device, whole: Callable[[nn.Module], object]) -> None:
    """Puts first weights and constants in place of those without storage; `whole` is called with each block that has its own."""
    left = Counter(_block_of(name) for name, _ in bare.named_parameters())
    for name, empty in list(bare.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        weight = torch.empty(empty.shape)
        bare.fill(name, weight)
        setattr(bare.get_submodule(owner), leaf, nn.Parameter(weight.to(where)))
        block = _block_of(name)
        left[block] -= 1
        if block and not left[block]:
            whole(bare.get_submodule(block))
    if bare.shape.tied:
        bare.head.weight = bare.embed.weight
    for name, table in bare.tables().items():
        bare.register_buffer(name, table.to(where), persistent=False)


def _block_of(name: str) -> str:
    """The block that a parameter is a part of, empty for none: `blocks.3` of `blocks.3.up.weight`."""
    return ".".join(name.split(".")[:2]) if name.startswith("blocks.") else ""


def make_optimizer(
    config: Config, bare: nn.Module, device: Device, group: Group
) -> tuple[torch.optim.Optimizer, Moments]:
    """The optimizer, and how its memory is saved by name."""
    if config.shard != "zero1" or not group.joined:
        optimizer = build_optimizer(config, bare, device.torch_device)
        return optimizer, Moments(optimizer, bare)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    groups = parameter_groups(config, bare)
    split = ZeroRedundancyOptimizer(
        groups,
        optimizer_class=torch.optim.AdamW,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=device.torch_device.type in {"cpu", "cuda"},
    )
    return split, SplitMoments(split, bare, group)


def wrap(config: Config, model: nn.Module, device: Device, group: Group) -> nn.Module:
    """The model as the loop calls it: in DDP for several ranks, unless FSDP2 has split it already."""
    if group.world_size == 1 or config.shard == "fsdp2":
        return model
    on_gpu = device.torch_device.type == "cuda"
    # Our buffers are constants: sending them in each forward pass costs a collective. torch 2.13 renamed the switch.
    known = signature(DistributedDataParallel.__init__).parameters
    switch = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    buffers: dict[str, Any] = {switch: False}
    return DistributedDataParallel(
        model,
        device_ids=[device.torch_device.index] if on_gpu else None,
        find_unused_parameters=config.find_unused_parameters,
        gradient_as_bucket_view=True,  # .grad lies in DDP's buckets: no second copy of all gradients
        **buffers,
    )


def syncing(model: nn.Module, config: Config) -> Callable[[bool], AbstractContextManager[None]]:
    """What the loop enters around each micro-step: gradients are summed over ranks in the last one only."""
    if isinstance(model, DistributedDataParallel):
        return lambda last: nullcontext() if last else model.no_sync()
    if config.shard != "fsdp2":
        return lambda _last: nullcontext()

    def split(last: bool) -> AbstractContextManager[None]:
        model.set_requires_gradient_sync(last)  # type: ignore[operator]  # fully_shard adds it to the model's class
        return nullcontext()

    return split


class SplitMoments(Moments):
    """The memory of a ZeRO-1 optimizer: each rank holds some parameters' share."""

    def __init__(self, optimizer: Any, model: nn.Module, group: Group) -> None:
        super().__init__(optimizer, model)
        self._split = optimizer
        self._group = group

    def named(self) -> dict[str, dict[str, Tensor]]:
        """Gathers all shares on rank 0; a collective. Returns: moments by name there, nothing elsewhere."""
        self._split.consolidate_state_dict(to=0)
        if not self._group.is_main:
            return {}
        state: dict[int, dict[str, Tensor]] = self._split.state_dict()["state"]
        names = self._names()
        return {names[at]: {key: held[key] for key in MOMENTS} for at, held in state.items()}

    def load(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Hands every rank all moments; each keeps its share."""
        state = {
            at: {key: saved[name][key].clone() for key in MOMENTS} for at, name in enumerate(self._names())
        }
        at, groups = 0, []
        for group in self._split.param_groups:
            count = len(group["params"])
            kept = {key: value for key, value in group.items() if key != "params"}
            groups.append({**kept, "params": list(range(at, at + count))})
            at += count
        self._split.load_state_dict({"state": state, "param_groups": groups})

    def _names(self) -> list[str]:
        """Parameter names in the order of the optimizer's indices."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        return [names[id(p)] for group in self._split.param_groups for p in group["params"]]
