"""Logs read to their end after their processes are gone, while the keeper's loop continues.

However much there is, all of it is read: what a job did in its last seconds may stand behind hundreds of megabytes. A
process that outlives the job and still holds a log open (a tracker's uploader) is waited for until it falls quiet.
"""

from __future__ import annotations

from supervisor.keeper.base.background import Background
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.log_monitor import LogWatch
from supervisor.sources.file_facts import any_is_written

QUIET_S = 2.0
"""A log that a process still holds open counts as ended after this many seconds without a byte."""
WRITTEN_S = 60.0
"""But one that is written on and on is read to where it stands after so long."""
LOOK_AGAIN_S = 0.5
"""Looking for writers walks /proc, on a machine of thousands of processes for a tenth of a second."""


class LastReading:
    """Looked at again and again by one thread until `look` says that it is over."""

    def __init__(self, logs: LogWatch, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._began = self._grew = self._next_search = clock.mono()
        self._size_bytes = logs.backlog().size_bytes
        self._waits = True
        self._search: Background[bool] = Background("stoker-writers")
        self._is_open: bool | None = None  # not known yet
        self._asked = False

    @property
    def took_s(self) -> float:
        """Seconds since its begin."""
        return self._clock.mono() - self._began

    def hurry(self) -> None:
        """Wait for nobody who still holds a log open."""
        self._waits = False

    def look(self) -> bool:
        """Whether all is read that will be."""
        if not self._asked and not (self._waits and self._may_grow()):
            self._asked = True
            self._logs.finish()
        return self._asked and self._logs.finished

    def _may_grow(self) -> bool:
        """Whether somebody still writes, as far as is known."""
        now = self._clock.mono()
        size_bytes = self._logs.backlog().size_bytes
        if size_bytes != self._size_bytes:
            self._size_bytes, self._grew = size_bytes, now
        if now - self._began >= WRITTEN_S:
            return False
        if self._search.busy:
            found = self._search.poll()
            if self._search.is_idle():
                self._is_open, self._next_search = bool(found), now + LOOK_AGAIN_S
        elif now >= self._next_search:
            paths = self._logs.paths
            self._search.start(lambda: any_is_written(paths))
        return self._is_open is None or (self._is_open and now - self._grew < QUIET_S)
