"""Who uses a GPU: the run's own processes, and those that are not the run's."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from supervisor.keeper.planning.host_facts import pids_are_the_drivers, user_of
from supervisor.sources.gpu import GpuProcess, GpuSample
from supervisor.sources.processes import command_of, parent_of

# An idle CUDA context holds some hundred MiB: less is nobody's trouble.
WORTH_SAYING_BYTES = 256 << 20
DEEPEST = 64
GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class Use:
    """Compute processes of one GPU in two parts. `own_bytes`, `others_bytes`: None where the driver does not report it."""

    index: int
    own: tuple[GpuProcess, ...]
    others: tuple[GpuProcess, ...]

    @property
    def own_bytes(self) -> int | None:
        """Memory of the run's processes."""
        return _sum(self.own)

    @property
    def others_bytes(self) -> int | None:
        """Memory of all others."""
        return _sum(self.others)

    @property
    def greatest(self) -> GpuProcess | None:
        """Of the others the one that holds most."""
        return max(self.others, key=lambda process: process.memory_used_bytes or 0, default=None)

    def values(self) -> dict[str, float | None]:
        """By the names of the series."""
        greatest = self.greatest
        found: dict[str, float | None] = {
            "own_memory_bytes": self.own_bytes,
            "others_memory_bytes": self.others_bytes,
        }
        return found if greatest is None else {**found, "others_pid": float(greatest.pid)}

    def advice(self) -> str | None:
        """Who shares a GPU with the run, in one line; None for nobody that matters."""
        greatest = self.greatest
        if not self.own or greatest is None or (self.others_bytes or 0) < WORTH_SAYING_BYTES:
            return None
        user, name = user_of(greatest.pid), command_of(greatest.pid)
        who = f"process {greatest.pid}"
        if name:
            who = f"{who} ({name})"
        if user:
            who = f"{who} of {user}"
        held = greatest.memory_used_bytes
        size = f"{held / GIB:.1f} GiB" if held is not None else "some"
        text = f"GPU {self.index} is shared: {who} holds {size} of its memory"
        return text if len(self.others) == 1 else f"{text}; {len(self.others) - 1} more"


class OtherGpuUsers:
    """Separates a GPU's processes. A process is the run's if it, or one it descends from, is watched or is this keeper."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}
        self._can_tell = pids_are_the_drivers()

    def uses(self, samples: Sequence[GpuSample], watched: Collection[int]) -> Iterator[Use]:
        """The use of each GPU whose processes the driver lists; nothing where its pids are not ours (a container)."""
        if not self._can_tell:
            return
        seen: set[int] = set()
        family = frozenset([*watched, os.getpid()])
        for sample in samples:
            if sample.processes is None:
                continue
            seen.update(process.pid for process in sample.processes)
            own = tuple(p for p in sample.processes if self._is_own(p.pid, family))
            others = tuple(p for p in sample.processes if p not in own)
            yield Use(sample.device.index, own, others)
        self._known = {pid: own for pid, own in self._known.items() if pid in seen}

    def _is_own(self, pid: int, family: frozenset[int]) -> bool:
        """Remembered while the process is listed: a rank that is orphaned stays the run's."""
        known = self._known.get(pid)
        if known is None or not known:  # its rank may only just have been found
            known = self._known[pid] = _descends(pid, family)
        return known


def _descends(pid: int, family: frozenset[int]) -> bool:
    at: int | None = pid
    for _ in range(DEEPEST):
        if at in family:
            return True
        if at is None or at <= 1:
            return False
        at = parent_of(at)
    return False


def _sum(processes: tuple[GpuProcess, ...]) -> int | None:
    held = [process.memory_used_bytes for process in processes]
    return None if None in held else sum(amount for amount in held if amount is not None)
