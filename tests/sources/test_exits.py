"""The end of processes is reported at once, with how they ended."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor.sources.processes import ExitWatch, ProcessId, exit_code_of, identify
from tests.conftest import not_none

WAITS = "import sys; sys.stdin.read(); "


@contextmanager
def child(code: str) -> Iterator[tuple[subprocess.Popen[bytes], ProcessId]]:
    """A process that waits for its input's end; nobody looks how it ended while the block runs."""
    process = subprocess.Popen([sys.executable, "-c", WAITS + code], stdin=subprocess.PIPE)
    try:
        known = not_none(identify(process.pid))
        yield process, known
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("code", "expected"),
    [("", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_an_end_comes_with_its_code(code: str, expected: int) -> None:
    seen: queue.SimpleQueue[tuple[int, int | None]] = queue.SimpleQueue()
    watch = ExitWatch(lambda name, exit_code: seen.put((name, exit_code)))
    try:
        with child(code) as (process, known):
            watch.watch(7, known)
            watch.watch(7, known)  # once is enough
            assert exit_code_of(known) is None, "it lives"
            assert process.stdin is not None
            process.stdin.close()
            assert seen.get(timeout=20) == (7, expected)
            assert exit_code_of(known) == expected, "a zombie keeps it"
        assert exit_code_of(known) is None, "its parent has it now"
        assert seen.empty()
    finally:
        watch.close()
