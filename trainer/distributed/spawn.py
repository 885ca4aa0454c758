"""Starts all ranks of one machine without a launcher: ``--distributed --world_size N``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

# Between looks at the children: short against the second that a rank needs to end.
LOOK_EVERY_S = 0.1
GRACE_S = 30.0


def spawn_ranks(world_size: int) -> int:
    """Runs this same command once a rank, with the variables that a launcher would set.

    The first rank that fails ends the others. SIGTERM and SIGINT are handed on.

    Returns:
        0, or the exit code of the rank that failed first (128 + number for a signal).
    """
    port = _free_port()
    children = [
        subprocess.Popen(sys.orig_argv, env=_environment(rank, world_size, port))
        for rank in range(world_size)
    ]

    def hand_on(number: int, _frame: FrameType | None) -> None:
        _signal_all(children, number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.signal(signal.SIGUSR1, hand_on)
    signal.signal(signal.SIGINT, hand_on)
    return _wait(children)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> int:
    first_bad = 0
    deadline: float | None = None
    while any(child.poll() is None for child in children):
        if not first_bad:
            first_bad = next((code for c in children if (code := c.poll()) not in {None, 0}), 0) or 0
            if first_bad:
                deadline = time.monotonic() + GRACE_S
                # A rank that stopped after a checkpoint (75) needs no help: its peers stop as well.
                _signal_all(children, signal.SIGTERM)
        if deadline is not None and time.monotonic() > deadline:
            _signal_all(children, signal.SIGKILL)
        time.sleep(LOOK_EVERY_S)
    codes = [child.returncode for child in children]
    code = first_bad or next((c for c in codes if c), 0)
    return 128 - code if code < 0 else code


def _signal_all(children: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    threads = str(max((os.cpu_count() or 1) // world_size, 1))
    return {
        "OMP_NUM_THREADS": threads,
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _free_port() -> int:
    """A port that nobody has now; another program may take it before rank 0 does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
