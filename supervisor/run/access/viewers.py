"""Who is watching a run and could act: a screen that may send requests keeps updating a file in ``control/``.

``control/viewer-<pid>@<host>`` holds a number that its screen increases every few seconds; the file is removed when the screen is left. The keeper
compares it with what it read before, never the clocks of two machines; a file that no longer changes does not count. Behind the number
stands `DECIDING` while its person is in a dialog about the next attempt.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from supervisor.run.paths import private
from supervisor.run.regular import open_regular

REFRESH_S = 3.0
STALE_S = 15.0
FORGOTTEN_S = 60.0
"""A file untouched for this many seconds was left by a screen that was killed: it is removed. A screen that only slept writes it again."""
LOOK_S = 1.0
_PREFIX = "viewer-"
_MOST_BYTES = 64
DECIDING = "deciding"


class Presence:
    """A screen's side. Times are monotonic seconds."""

    def __init__(self, control: Path) -> None:
        host = socket.gethostname().replace("/", "_")
        self._path = control / f"{_PREFIX}{os.getpid()}@{host}"
        self._count = 0
        self._due = float("-inf")
        self._deciding = False

    def decide(self, deciding: bool, now: float) -> None:
        """The person opened or left a dialog about the next attempt: it is written at once, where the file is kept up to date."""
        self._deciding = deciding
        if self._count:
            self._due = now
            self.refresh(now)

    def refresh(self, now: float) -> None:
        """Update the file, where that is due. A screen that cannot write here cannot send requests either."""
        if now < self._due:
            return
        self._due = now + REFRESH_S
        self._count += 1
        with contextlib.suppress(OSError):
            text = f"{self._count} {DECIDING}" if self._deciding else str(self._count)
            with open(self._path, "w", opener=lambda path, flags: private(path, flags, 0o644)) as file:
                file.write(text)

    def leave(self) -> None:
        """The screen was left: remove the file."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


class Viewers:
    """The keeper's side. Times are monotonic seconds of one clock."""

    def __init__(self, control: Path) -> None:
        self._control = control
        # What was read, since when, whether it ever moved.
        self._known: dict[str, tuple[bytes, float, bool]] = {}
        self._due = float("-inf")

    def look(self, now: float) -> None:
        """Read the files, once a second at most."""
        if now < self._due:
            return
        self._due = now + LOOK_S
        try:
            names = [name for name in os.listdir(self._control) if name.startswith(_PREFIX)]
        except OSError:
            names = []
        found: dict[str, tuple[bytes, float, bool]] = {}
        for name in names:
            try:
                with open_regular(self._control / name) as file:
                    data = file.read(_MOST_BYTES)
            except OSError:
                continue
            before = self._known.get(name)
            if before is None or before[0] != data:
                found[name] = (data, now, before is not None)
            elif now - before[1] < FORGOTTEN_S:
                found[name] = before
            else:
                with contextlib.suppress(OSError):
                    (self._control / name).unlink()
        self._known = found

    def watched(self, now: float) -> bool:
        """Whether some screen's file has moved within the last `STALE_S`."""
        return bool(self._live(now))

    def deciding(self, now: float) -> bool:
        """Whether the person at such a screen is in a dialog about the next attempt."""
        return any(data.endswith(DECIDING.encode()) for data in self._live(now))

    def _live(self, now: float) -> list[bytes]:
        return [data for data, since, moved in self._known.values() if moved and now - since <= STALE_S]
