"""Lines for a GPU, run against fakes of torch.cuda: what is asked of PyTorch, not what it then does (docs/gpu-unverified.md)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.config import Config
from trainer.distributed.compute import look
from trainer.distributed.group import Device, Group
from trainer.distributed.machine import Decision
from trainer.distributed.place import Place
from trainer.reporting import memory
from trainer.reporting.memory import MemoryCap

PLACE = Place(1, 2, 1, "torchrun")
GIB = 1 << 30
CUDA = torch.device("cuda", 1)


def decision(gpu: int | None) -> Decision:
    known: dict[str, Any] = dict.fromkeys(Decision.__dataclass_fields__)
    return Decision(**{**known, "gpu": gpu, "backend": "nccl" if gpu is not None else "gloo"})


def test_what_is_seen_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, uuid="aa-bb", pci_bus_id=7)
    part = SimpleNamespace(name="NVIDIA A100 MIG 1g.5gb", major=8, minor=0, uuid="cc", pci_bus_id=9)
    far = SimpleNamespace(
        name="NVIDIA A100 MIG 1g.5gb", major=8, minor=0, uuid="dd", pci_bus_id=9, pci_domain_id=1
    )
    old = SimpleNamespace(name="Tesla V100", major=7, minor=0)  # of a torch that tells no UUID
    held = [whole, part, far, old]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(held))
    monkeypatch.setattr(torch.cuda, "get_device_properties", held.__getitem__)
    seen = look(Config(), PLACE)
    assert [gpu.capability for gpu in seen.gpus] == [(9, 0), (8, 0), (8, 0), (7, 0)]
    assert [gpu.chip.removeprefix(seen.host) for gpu in seen.gpus] == ["aa-bb", "/9", "/1:9", "/Tesla V100"]
    assert look(Config(device="cpu"), PLACE).gpus == ()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_group_is_made_on_the_ranks_own_gpu(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    device = Device.of(decision(1))
    assert device.torch_device == CUDA
    assert chosen == [CUDA]
    made: dict[str, Any] = {}
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda backend, **named: made.update(named, backend=backend)
    )
    group = Group(PLACE)
    monkeypatch.setattr(group, "_store", object())
    group.join(Config(dist_timeout_s=5), Device(CUDA, backend))
    assert made["backend"] == backend
    assert made["device_id"] == (CUDA if backend == "nccl" else None)
    assert (made["rank"], made["world_size"]) == (1, 2)
    assert group._device.type == ("cuda" if backend == "nccl" else "cpu")


def test_memory_is_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"memory_allocated": 3 * GIB, "memory_reserved": 4 * GIB, "max_memory_allocated": 5 * GIB}
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _device: {"num_alloc_retries": 2})
    read = memory.read(CUDA)
    assert (read.used_bytes, read.memory_peak_bytes, read.alloc_retries) == (4 * GIB, 5 * GIB, 2)
    capped: list[tuple[float, Any]] = []
    whole = SimpleNamespace(total_memory=16 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: whole)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, at: capped.append((share, at))
    )
    assert MemoryCap(CUDA).set(1024) == 5 * GIB
    assert MemoryCap(CUDA).set(1 << 20) > 16 * GIB
    assert capped == [(5 / 16, CUDA), (1.0, CUDA)]
