"""Memory limits and OOM kills of the control group, versions 1 and 2.

Files and their meaning: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. A kill
by the group's limit leaves nothing in a log but exit -9: its counter here is the confirmation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.sources.processes import read_proc

# v1 shows "no limit" as the largest page-aligned number; nothing real comes near it.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """Memory of a process's control group. `limit_bytes`: the tightest on the way up; None: no limit.

    `used_bytes`: in the group that has this limit, without file pages that the kernel gives up first when memory runs
    short (inactive_file, as docker and Kubernetes count): after a dataset was read, these fill any limit.

    `oom_kills` counts processes of the group killed for memory, since the group was made; only a rise means
    something. `version`: 1 or 2.
    """

    version: int
    used_bytes: int | None
    limit_bytes: int | None
    oom_kills: int | None


def read_cgroup_memory(pid: int | None = None, root: str = "/") -> CgroupMemory | None:
    """The memory group of a process (by default our own); None where there is no such thing to read."""
    listing = _read(os.path.join(root, f"proc/{pid if pid is not None else 'self'}/cgroup"))
    unified = v1 = None
    for line in listing.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            unified = path
        elif "memory" in controllers.split(","):
            v1 = path
    if v1 is not None:
        found = _read_v1(os.path.join(root, "sys/fs/cgroup/memory"), v1)
        if found is not None:
            return found
    if unified is not None:
        return _read_v2(os.path.join(root, "sys/fs/cgroup"), unified)
    return None


def memory_kills() -> int | None:
    """Processes of our own group killed for memory since it was made; None where nobody counts."""
    found = read_cgroup_memory()
    return found.oom_kills if found is not None else None


def _read_v2(mount: str, path: str) -> CgroupMemory | None:
    folders = _upwards(mount, path, "memory.current")
    if not folders:
        return None
    limits = {folder: _number(folder, "memory.max") for folder in folders}
    group, limit = _tightest(limits)
    return CgroupMemory(
        version=2,
        used_bytes=_used(group, "memory.current", "inactive_file"),
        limit_bytes=limit,
        oom_kills=_field(folders[0], "memory.events", "oom_kill"),
    )


def _read_v1(mount: str, path: str) -> CgroupMemory | None:
    folders = _upwards(mount, path, "memory.usage_in_bytes")
    if not folders:
        return None
    limits = {folder: _number(folder, "memory.limit_in_bytes") for folder in folders}
    real = {folder: limit if limit and limit < _NO_LIMIT_BYTES else None for folder, limit in limits.items()}
    group, limit = _tightest(real)
    return CgroupMemory(
        version=1,
        used_bytes=_used(group, "memory.usage_in_bytes", "total_inactive_file"),
        limit_bytes=limit,
        oom_kills=_field(folders[0], "memory.oom_control", "oom_kill"),
    )


def _tightest(limits: Mapping[str, int | None]) -> tuple[str, int | None]:
    """The group whose limit is the lowest, and that; without any, the nearest group."""
    limited = [(limit, folder) for folder, limit in limits.items() if limit is not None]
    if not limited:
        return next(iter(limits)), None
    limit, folder = min(limited, key=lambda each: each[0])  # of equal ones the nearest
    return folder, limit


def _used(folder: str, name: str, given_up_first: str) -> int | None:
    used = _number(folder, name)
    return None if used is None else max(used - (_field(folder, "memory.stat", given_up_first) or 0), 0)


def _upwards(mount: str, path: str, needed: str) -> list[str]:
    """The group's folder and those above it, nearest first, as far as they have the file `needed`.

    In a container the listed path is the host's and does not exist under our mount: the mount itself is
    the group then.
    """
    parts = [part for part in path.split("/") if part and part != ".."]
    folders = [os.path.join(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in folders if os.path.exists(os.path.join(folder, needed))]


def _number(folder: str, name: str) -> int | None:
    text = _read(os.path.join(folder, name)).strip()
    return int(text) if text.isdigit() else None


def _field(folder: str, name: str, key: str) -> int | None:
    for line in _read(os.path.join(folder, name)).splitlines():
        found, _, value = line.partition(" ")
        if found == key and value.strip().isdigit():
            return int(value)
    return None


def _read(path: str) -> str:
    return (read_proc(path, 1 << 16) or b"").decode("utf-8", "replace")
