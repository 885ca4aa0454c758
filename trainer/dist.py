"""Ranks: where each computes, how it meets its peers, and how they agree."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as td
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from trainer.config import Config, UsageError
from trainer.place import Place, slurm_master


@dataclass(frozen=True, slots=True)
class Device:
    """Where this rank computes, and over what it talks."""

    torch_device: torch.device
    backend: str
    shared: bool  # more ranks than GPUs: several processes on one
    reason: str


def choose_device(config: Config, place: Place) -> Device:
    """The device of this rank and the backend.

    Raises:
        UsageError: a GPU or a backend was asked for that is not there.
    """
    count = torch.cuda.device_count() if config.device != "cpu" else 0
    if config.device == "cuda" and count == 0:
        raise UsageError(
            "--device cuda, but no GPU is visible here (CUDA_VISIBLE_DEVICES?); use --device cpu"
        )
    if count == 0:
        if config.backend == "nccl":
            raise UsageError(
                "--backend nccl needs a GPU a rank, and none is visible here; use --backend gloo"
            )
        why = "asked for" if config.device == "cpu" else "no GPU is visible"
        return Device(torch.device("cpu"), "gloo", False, why)
    shared = place.local_world_size > count
    if shared and config.backend == "nccl":
        raise UsageError(
            f"--backend nccl cannot put {place.local_world_size} ranks on {count} GPU(s); use --backend gloo"
        )
    backend = ("gloo" if shared else "nccl") if config.backend == "auto" else config.backend
    device = torch.device("cuda", place.local_rank % count)
    torch.cuda.set_device(device)
    why = f"{place.local_world_size} ranks share {count} GPU(s)" if shared else f"{count} GPU(s)"
    return Device(device, backend, shared, why)


class Group:
    """All ranks. With one rank every method is local and free.

    Collectives are issued only on the healthy path: after an error a rank leaves, it never asks its peers.
    """

    def __init__(self, place: Place, device: Device) -> None:
        self.rank = place.rank
        self.world_size = place.world_size
        self.is_main = place.rank == 0
        self._device = device.torch_device if device.backend == "nccl" else torch.device("cpu")
        self._joined = False

    def join(self, config: Config, backend: str, env: Mapping[str, str]) -> None:
        """Meets the other ranks: long to wait for stragglers, shorter for each collective after that.

        `init_process_group` by itself has one timeout for both; so the meeting is made here, as it would make it.
        """
        if self.world_size == 1 and config.shard == "none":
            return
        address, port = slurm_master(env) if "SLURM_PROCID" in env else ("127.0.0.1", "29500")
        # A launcher that told RANK told these four; without one (SLURM, one rank) they are made up here.
        os.environ.setdefault("MASTER_ADDR", address)
        os.environ.setdefault("MASTER_PORT", port)
        os.environ.setdefault("RANK", str(self.rank))
        os.environ.setdefault("WORLD_SIZE", str(self.world_size))
        wait = timedelta(seconds=config.init_timeout_s)
        store, rank, world = next(iter(rendezvous("env://", timeout=wait)))
        store.set_timeout(wait)
        td.init_process_group(
            backend,
            store=PrefixStore("trainer", store),  # torchrun keeps keys of its own in the same store
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=config.dist_timeout_s),
            device_id=self._device if backend == "nccl" else None,  # NCCL connects now, not in the first step
        )
        self._joined = True

    @property
    def joined(self) -> bool:
        """Whether a process group exists."""
        return self._joined

    def total(self, numbers: Sequence[float]) -> list[float]:
        """The sum over all ranks, number by number: the one small collective of a step."""
        if self.world_size == 1:
            return list(numbers)
        vector = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        td.all_reduce(vector)
        return [float(value) for value in vector.tolist()]

    def any_of(self, mine: bool) -> bool:
        """Whether any rank says yes."""
        return self.total([float(mine)])[0] > 0

    def from_main(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        if self.world_size == 1:
            return text
        data = text.encode()
        size = int(self.total([len(data) if self.is_main else 0])[0])
        buffer = torch.zeros(size, dtype=torch.uint8, device=self._device)
        if self.is_main and size:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if size:
            td.broadcast(buffer, 0)
        return bytes(buffer.cpu().tolist()).decode()

    def barrier(self) -> None:
        """Waits for all ranks (an all-reduce: it needs no device to be guessed)."""
        self.total([0.0])

    def leave(self) -> None:
        """Ends the group cleanly; the caller has dropped loss and graph, and still holds the model.

        Measured: a bare destroy aborts healthy gloo runs at exit (7 of 46); in this order 0 of 30.
        """
        if not self._joined:
            return
        self._joined = False
        self.barrier()
        td.destroy_process_group()
