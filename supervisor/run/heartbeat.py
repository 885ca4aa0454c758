"""Signs of life: a file with a number that grows while its writer is alive, and a reader that watches the number.

The clocks of two machines are never compared. A reader uses its own monotonic clock to time how long a file stays unchanged.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from supervisor.run.paths import private
from supervisor.run.regular import read_regular

BEAT_S: Final = 1.0
"""Seconds between writes of a keeper's heartbeat."""
SILENT_S: Final = 20.0
"""Seconds without a change before a heartbeat counts as silent. That is 20 beats, which allows for a busy disk."""


class Heartbeat:
    """A file that its writer updates every `every_s` seconds. Times are monotonic seconds."""

    def __init__(self, path: Path, writer: str, *, every_s: float = BEAT_S, mode: int = 0o600) -> None:
        self._path, self._writer, self._every_s, self._mode = path, writer, every_s, mode
        self._count, self._due = 0, float("-inf")

    def beat(self, now: float) -> None:
        """Write the next number if it is due. Errors are ignored; readers then see no change."""
        if now < self._due:
            return
        self._due, self._count = now + self._every_s, self._count + 1
        with (
            contextlib.suppress(OSError),
            open(private(self._path, os.O_WRONLY | os.O_CREAT, self._mode), "wb", buffering=0) as file,
        ):
            file.write(f"{self._writer} {self._count:012d}\n".encode())

    def remove(self) -> None:
        """Remove the file when its writer exits."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


class Pulse:
    """A heartbeat timed by this reader's clock. A file that has not changed since the first read is not a sign of life."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data: bytes | None = None
        self._first: float | None = None
        self._moved: float | None = None

    def look(self, now: float) -> None:
        """Read the file. `now` is in monotonic seconds."""
        self._first = now if self._first is None else self._first
        try:
            data = read_regular(self._path, 64)
        except OSError:
            return
        if self._data is not None and data != self._data:
            self._moved = now
        self._data = data

    def moved(self) -> bool:
        """Check whether the file has changed since it was first read."""
        return self._moved is not None

    def silent_s(self, now: float) -> float:
        """Return the number of seconds since the file last changed, or since it was first read if it has never changed."""
        since = self._moved if self._moved is not None else self._first
        return now - since if since is not None else 0.0

    def lives(self, now: float, within_s: float) -> bool:
        """Check whether the file has changed within the last `within_s` seconds."""
        return self._moved is not None and now - self._moved <= within_s
