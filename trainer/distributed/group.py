"""Ranks: where each computes, how it meets its peers, and how they agree."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as td
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from trainer.config import Config, UsageError
from trainer.distributed.machine import Decision, Gpu, Report
from trainer.distributed.place import Place, slurm_master


@dataclass(frozen=True, slots=True)
class Device:
    """Where this rank computes, and over what it talks."""

    torch_device: torch.device
    backend: str

    @classmethod
    def of(cls, decision: Decision) -> Device:
        """What was decided, as torch takes it; the GPU becomes this process's own."""
        if decision.gpu is None:
            return cls(torch.device("cpu"), decision.backend)
        device = torch.device("cuda", decision.gpu)
        torch.cuda.set_device(device)
        return cls(device, decision.backend)


class Group:
    """All ranks. With one rank every method is local and free.

    Collectives are issued only on the healthy path: after an error a rank leaves, it never asks its peers.
    """

    def __init__(self, place: Place) -> None:
        self.rank = place.rank
        self.world_size = place.world_size
        self.is_main = place.rank == 0
        self._device = torch.device("cpu")
        self._store: PrefixStore | None = None
        self._joined = False

    def meet(self, config: Config, mine: Report, env: Mapping[str, str]) -> list[Report]:
        """Waits for the other ranks and hears what each of them sees, by rank.

        `init_process_group` would meet them too, but has one timeout for that and for every collective after it, and wants to
        know the backend beforehand.
        """
        if self.world_size == 1 and config.shard == "none":
            return [mine]
        address, port = slurm_master(env) if "SLURM_PROCID" in env else ("127.0.0.1", "29500")
        if "RANK" in env and self.world_size > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
            raise UsageError(
                "RANK and WORLD_SIZE are set, but not MASTER_ADDR and MASTER_PORT: set them to the host of rank 0 and a free port there"
            )
        # A launcher that sets RANK sets these four; without one (SLURM, one rank) they are made up here.
        os.environ.setdefault("MASTER_ADDR", address)
        os.environ.setdefault("MASTER_PORT", port)
        os.environ.setdefault("RANK", str(self.rank))
        os.environ.setdefault("WORLD_SIZE", str(self.world_size))
        wait = timedelta(seconds=config.init_timeout_s)
        store, _rank, world = next(iter(rendezvous("env://", timeout=wait)))
        store.set_timeout(wait)
        self._store = PrefixStore("trainer", store)  # torchrun keeps keys of its own in the same store
        self._store.set(f"sees/{self.rank}", json.dumps(asdict(mine)))
        told = self._store.multi_get([f"sees/{rank}" for rank in range(world)])
        return [_report(text) for text in told]

    def join(self, config: Config, device: Device) -> None:
        """Makes the process group, over the backend that was decided on once all had met."""
        if self._store is None:
            return
        self._device = device.torch_device if device.backend == "nccl" else torch.device("cpu")
        td.init_process_group(
            device.backend,
            store=self._store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=config.dist_timeout_s),
            device_id=self._device
            if device.backend == "nccl"
            else None,  # NCCL connects now, not in the first step
        )
        self._joined = True

    @property
    def joined(self) -> bool:
        """Whether a process group exists."""
        return self._joined

    def summed(self, vector: Tensor) -> Tensor:
        """The sum over all ranks, number by number, on the device that they talk over: with NCCL the host does not wait for it."""
        if self.world_size > 1:
            vector = vector.to(self._device)
            td.all_reduce(vector)
        return vector

    def total(self, numbers: Sequence[float]) -> list[float]:
        """The same of plain numbers."""
        if self.world_size == 1:
            return list(numbers)
        vector = self.summed(torch.tensor(numbers, dtype=torch.float64, device=self._device))
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


def _report(text: bytes) -> Report:
    told = json.loads(text)
    gpus = tuple(Gpu(gpu["name"], tuple(gpu["capability"]), gpu["chip"]) for gpu in told["gpus"])
    return Report(told["host"], told["local_rank"], gpus)
