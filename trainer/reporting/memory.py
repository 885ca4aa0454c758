"""What a process holds, and a cap on it, so that running out of memory can be shown on any machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Readings:
    """Memory of this process in bytes; None where it cannot be read or does not apply."""

    rss_bytes: int | None = None
    vm_bytes: int | None = None
    vm_peak_bytes: int | None = None
    memory_allocated_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_peak_bytes: int | None = None
    alloc_retries: int | None = None

    @property
    def used_bytes(self) -> int | None:
        """What a person calls its memory: reserved on CUDA, else resident."""
        return self.memory_reserved_bytes if self.memory_reserved_bytes is not None else self.rss_bytes

    @property
    def held_bytes(self) -> int:
        """What the cap is measured against: reserved on CUDA, else the address space."""
        return self.memory_reserved_bytes or self.vm_bytes or 0


def read(device: torch.device) -> Readings:
    """The memory this process holds now."""
    host = _status()
    if device.type != "cuda":
        return Readings(
            rss_bytes=host.get("VmRSS"),
            vm_bytes=host.get("VmSize"),
            vm_peak_bytes=host.get("VmPeak"),
            memory_peak_bytes=host.get("VmHWM"),
        )
    return Readings(
        rss_bytes=host.get("VmRSS"),
        memory_allocated_bytes=torch.cuda.memory_allocated(device),
        memory_reserved_bytes=torch.cuda.memory_reserved(device),
        memory_peak_bytes=torch.cuda.max_memory_allocated(device),
        alloc_retries=int(torch.cuda.memory_stats(device).get("num_alloc_retries", 0)),
    )


class MemoryCap:
    """A cap on this process, which can be lifted again: the report of a failure needs memory too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: tuple[int, int] | None = None
        self.limit_bytes: int | None = None

    def set(self, headroom_mib: float) -> int:
        """Lets the process grow by `headroom_mib` over what it holds now, and no further.

        On a CPU that is RLIMIT_AS (the soft one); on CUDA the share of the device that PyTorch's allocator
        may reserve.

        Returns:
            The cap in bytes.
        """
        limit = read(self._device).held_bytes + int(headroom_mib * MIB)
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(limit / total, 1.0), self._device)
        else:
            import resource

            self._before = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (limit, self._before[1]))
        self.limit_bytes = limit
        return limit

    def lift(self) -> None:
        """Undoes the cap on the address space, if there is one."""
        if self._before is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_AS, self._before)
            self._before = None


def _status() -> dict[str, int]:
    """The sizes that Linux' /proc tells of this process, in bytes; empty elsewhere."""
    found = {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.startswith("Vm") and value.endswith("kB\n"):
                    found[name] = int(value[:-3]) * 1024
    except OSError:
        return {}
    return found
