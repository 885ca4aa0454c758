"""What the kernel's log says of processes killed for memory (/dev/kmsg, Documentation/ABI/testing/dev-kmsg).

Reading it needs rights that ordinary users mostly lack (kernel.dmesg_restrict): then there is nothing to say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from supervisor.text.numbers import whole

KMSG = "/dev/kmsg"
RECORD_BYTES = 8192
MOST_RECORDS = 20_000
# mm/oom_kill.c since 2.6: "Out of memory: Killed process 123 (python) ...", "Memory cgroup out of memory: Kill process 123 ..."
_KILLED = re.compile(r"Kill(?:ed)? process (\d+)")


def oom_kills(pids: Collection[int], *, since_s: float, path: str = KMSG) -> str:
    """The log's lines that report one of `pids` as killed for memory, one a line; "" where there is none.

    Args:
        pids: whose death is asked about, as the kernel's own pid namespace numbers them.
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
                continue  # records were overwritten while we read: the next read continues behind them
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
