"""Reads memory limits and OOM kill counts from the kernel's cgroup files (v1 and v2).

The kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst document the files. When a process
is OOM-killed for exceeding its cgroup limit, the log shows only exit code -9. The counter read here confirms it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from supervisor.sources.processes import read_proc

# v1 shows "no limit" as the largest page-aligned number. No real limit comes near that number.
_NO_LIMIT_BYTES = 1 << 60
# By version: usage, limit, the pages that are reclaimed first, and the kill counter.
_FILES = {
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file", "memory.oom_control"),
    2: ("memory.current", "memory.max", "inactive_file", "memory.events"),
}


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """A process's cgroup memory. `limit_bytes` is the tightest limit on the way up the hierarchy, or None.

    `used_bytes` is the usage of the cgroup with that limit, minus the file pages that the kernel reclaims first when
    memory runs short (inactive_file, as in docker and Kubernetes). Once a dataset has been read, they fill any limit.

    `oom_kills` is the number of processes in the cgroup that were OOM-killed since it was created. Only an increase
    matters. `version` is 1 or 2.
    """

    version: int
    used_bytes: int | None
    limit_bytes: int | None
    oom_kills: int | None


def read_cgroup_memory(pid: int | None = None, root: str = "/") -> CgroupMemory | None:
    """Read a process's memory cgroup (ours by default). Return None if it has none."""
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
        found = _read_group(1, os.path.join(root, "sys/fs/cgroup/memory"), v1)
        if found is not None:
            return found
    if unified is not None:
        return _read_group(2, os.path.join(root, "sys/fs/cgroup"), unified)
    return None


def memory_kills() -> int | None:
    """Count the OOM kills in our own cgroup since it was created. Return None if there is no counter."""
    found = read_cgroup_memory()
    return found.oom_kills if found is not None else None


def _read_group(version: int, mount: str, path: str) -> CgroupMemory | None:
    used, most, given_up_first, events = _FILES[version]
    # The group's folder and its ancestors, nearest first. In a container, the listed path is the host's and
    # does not exist under our mount. The mount itself is then the group.
    parts = [part for part in path.split("/") if part and part != ".."]
    above = [os.path.join(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    folders = [folder for folder in above if os.path.exists(os.path.join(folder, used))]
    if not folders:
        return None
    limits = {folder: limit for folder in folders if (limit := _number(folder, most)) is not None}
    limits = {folder: limit for folder, limit in limits.items() if limit < _NO_LIMIT_BYTES}
    group = min(limits, key=limits.__getitem__, default=folders[0])  # the nearest of equal limits
    in_use = _number(group, used)
    if in_use is not None:
        in_use = max(in_use - (_field(group, "memory.stat", given_up_first) or 0), 0)
    return CgroupMemory(version, in_use, limits.get(group), _field(folders[0], events, "oom_kill"))


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
