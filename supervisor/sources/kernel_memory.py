"""The kernel's facts about memory: limits and kills of the control group (versions 1 and 2), and its log of kills.

Files and their meaning: the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and ABI/testing/dev-kmsg. A kill
by the group's limit leaves only exit -9 in a log; the counter here confirms it. Reading /dev/kmsg needs rights that ordinary users
usually lack (kernel.dmesg_restrict); then nothing is reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass

from supervisor.sources.processes import read_proc
from supervisor.text.patterns import whole

# v1 shows "no limit" as the largest page-aligned number; no real limit comes near it.
_NO_LIMIT_BYTES = 1 << 60
# By version: usage, its limit, the pages that are reclaimed first, and the kill counter.
_FILES = {
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file", "memory.oom_control"),
    2: ("memory.current", "memory.max", "inactive_file", "memory.events"),
}
KMSG = "/dev/kmsg"
RECORD_BYTES = 8192
MOST_RECORDS = 20_000
# mm/oom_kill.c since 2.6: "Out of memory: Killed process 123 (python) ...", "Memory cgroup out of memory: Kill process 123 ..."
_KILLED = re.compile(r"Kill(?:ed)? process (\d+)")


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """Memory of a process's control group. `limit_bytes`: the tightest on the way up; None: none.

    `used_bytes`: in the group with this limit, without the file pages that the kernel reclaims first when memory runs
    short (inactive_file, as docker and Kubernetes count): after a dataset was read, these fill any limit.

    `oom_kills` counts processes of the group killed for memory, since the group was created; only a rise matters.
    `version`: 1 or 2.
    """

    version: int
    used_bytes: int | None
    limit_bytes: int | None
    oom_kills: int | None


def read_cgroup_memory(pid: int | None = None, root: str = "/") -> CgroupMemory | None:
    """The memory group of a process (by default our own); None without one."""
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
    """Processes of our own group killed for memory since it was created; None without a counter."""
    found = read_cgroup_memory()
    return found.oom_kills if found is not None else None


def oom_kills(pids: Collection[int], *, since_s: float, path: str = KMSG) -> str:
    """The log's lines that report one of `pids` as killed for memory; "" if there are none.

    Args:
        pids: the processes in question, as numbered in the kernel's own pid namespace.
        since_s: monotonic seconds since boot; older records are about an earlier process with that pid.
        path: the device.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    found = []
    try:
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(fd, RECORD_BYTES)
            except BrokenPipeError:
                continue  # records were overwritten during the read: the next read continues after them
            except OSError:
                break  # EAGAIN: the end of the log
            if not record:
                break
            text = about(record, pids, since_s)
            if text is not None:
                found.append(text)
    finally:
        os.close(fd)
    return "\n".join(found)


def about(record: bytes, pids: Collection[int], since_s: float) -> str | None:
    """The message of one record (``priority,sequence,microseconds,flags;message``) if it is about `pids`."""
    head, _, body = record.partition(b";")
    parts = head.split(b",")
    if len(parts) < 3 or not parts[2].isdigit() or whole(parts[2].decode()) / 1e6 < since_s:
        return None
    text = body.split(b"\n", 1)[0].decode("utf-8", "replace")
    killed = _KILLED.search(text)
    return text if killed is not None and whole(killed[1]) in pids else None


def _read_group(version: int, mount: str, path: str) -> CgroupMemory | None:
    used, most, given_up_first, events = _FILES[version]
    # The group's folder and its ancestors, nearest first. In a container the listed path is the host's and
    # does not exist under our mount; then the mount itself is the group.
    parts = [part for part in path.split("/") if part and part != ".."]
    above = [os.path.join(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    folders = [folder for folder in above if os.path.exists(os.path.join(folder, used))]
    if not folders:
        return None
    limits = {folder: limit for folder in folders if (limit := _number(folder, most)) is not None}
    limits = {folder: limit for folder, limit in limits.items() if limit < _NO_LIMIT_BYTES}
    group = min(limits, key=limits.__getitem__, default=folders[0])  # of equal limits the nearest
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
