"""Logs on disk for the tests of the log views, and what they are compared with."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from supervisor.text.decode import clean
from supervisor.views.logs.file import LogFile

PIECES = st.sampled_from(
    [b"error", b"Warn", b" ", b"\n", b"\n", b"\r", b"\r\n", b"\0", b"\x1b[31m", b"\xff", "é宽🙂İ".encode(), b"x" * 70, b"step 12"]
)  # fmt: skip
DATA = st.lists(PIECES, max_size=60).map(b"".join)
QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def reference(data: bytes) -> list[tuple[int, str]]:
    """Every line's offset and text."""
    found, at = [], 0
    for raw in data.split(b"\n")[: None if not data.endswith(b"\n") else -1]:
        found.append((at, clean(raw)))
        at += len(raw) + 1
    return found if data else []


def opened(path: Path, data: bytes, *, counted: bool = False) -> LogFile:
    path.write_bytes(data)
    file = LogFile(str(path))
    file.refresh()
    if counted:
        count(file)
    return file


def count(file: LogFile) -> None:
    while file.count():
        pass


def never() -> None:
    """Nobody interrupts a test."""
