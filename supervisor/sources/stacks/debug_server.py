"""PyTorch's own debug server: a rank that runs one is asked for its Python stacks, which needs no right to look into it.

`torch.distributed.debug.start_debug_server` (as of PyTorch 2.13) begins a server in each rank (c10d's WorkerServer.cpp): plain HTTP,
``POST /handler/dump_traceback`` answers with what faulthandler prints of all threads, also while the interpreter waits in a
collective. Its port is mostly a free one, told to the job's own store alone. It is found here without asking anybody: the
process has threads named ``pt_workerserver``, and listens on one port of every address. Of several such ports none is asked: a
strange server might not bear it.
"""

from __future__ import annotations

import http.client
import json
import os
import re

from supervisor.sources.processes import (
    ProcessId,
    environment_value,
    is_alive,
    listening_sockets,
    open_files,
    read_proc,
)
from supervisor.text.decode import clean

THREAD = b"pt_workerserver"
HANDLER = "dump_traceback"
_CAP_BYTES = 1 << 18
_ANYWHERE = frozenset(("0" * 8, "0" * 32))
_MAX_TASKS = 4096


def find_debug_server(process: ProcessId) -> int | None:
    """The port of a process's debug server; None where it has none, or more than one port may be it."""
    if not _has_thread(process.pid):
        return None
    ports = _open_ports(process.pid)
    store = environment_value(process.pid, "MASTER_PORT") or ""
    ports.discard(int(store) if store.isdecimal() else -1)  # rank 0 may hold the job's store
    return ports.pop() if len(ports) == 1 and is_alive(process) else None


def has_stacks(port: int, *, timeout_s: float) -> bool:
    """Whether what listens on this port is such a server; none of its handlers is run."""
    link = http.client.HTTPConnection("localhost", port, timeout=timeout_s)
    try:
        link.request("GET", "/handler/")
        return HANDLER in _names(link.getresponse())
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()


def ask_debug_server(port: int, *, timeout_s: float) -> tuple[tuple[str, ...] | None, str]:
    """The stacks that the server on this port gives, as lines; None, and why, where it gives none.

    The main thread's stack comes last, as faulthandler lists the threads, newest first; the server's own thread has no frames.
    """
    link = http.client.HTTPConnection("localhost", port, timeout=timeout_s)
    try:
        link.request("GET", "/handler/")
        # It may be anybody's: it is asked for its handlers first.
        if HANDLER not in _names(link.getresponse()):
            return None, "what listens is no debug server"
        link.request("POST", f"/handler/{HANDLER}")
        answer = link.getresponse()
        text = answer.read(_CAP_BYTES)
    except (OSError, http.client.HTTPException) as error:
        why = "it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        return None, f"PyTorch's debug server: {why}"
    finally:
        link.close()
    if answer.status != http.client.OK or b"most recent call first" not in text:
        return None, f"PyTorch's debug server gave no stacks (status {answer.status})"
    lines = [clean(line) for line in text.rstrip().split(b"\n") if line.strip()]
    return _main_thread_marked(lines), ""


def _main_thread_marked(lines: list[str]) -> tuple[str, ...]:
    """The same stacks, with the main thread as the current one: that the server's thread answered is of no interest."""
    heads = [at for at, line in enumerate(lines) if line.endswith("(most recent call first):")]
    kept = [re.sub(r"^Current thread ", "Thread ", line) for line in lines]
    if heads:
        kept[heads[-1]] = re.sub(r"^Thread ", "Current thread ", kept[heads[-1]])
    return tuple(kept)


def _names(answer: http.client.HTTPResponse) -> list[str]:
    try:
        found = json.loads(answer.read(_CAP_BYTES))
    except ValueError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _has_thread(pid: int) -> bool:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")[:_MAX_TASKS]
    except OSError:
        return False
    return any(read_proc(f"/proc/{pid}/task/{task}/comm", 64) == THREAD + b"\n" for task in tasks)


def _open_ports(pid: int) -> set[int]:
    """The TCP ports on which a process listens at every address."""
    own = {name for _, name in open_files(pid)}
    return {port for address, port, name in listening_sockets(pid) if address in _ANYWHERE and name in own}
