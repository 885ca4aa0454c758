"""The processes of this machine that write the watched logs: once all of them have ended, so has the job.

Who writes from elsewhere (NFS, another machine) or may not be looked at (another user, a container) is not seen; then there are
no writers, and nothing follows from that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.keeper.background import Background
from supervisor.sources.processes import ProcessId, identify, is_alive, writers_of

LOOK_S = 1.0


class Writers:
    """Looked at again and again by one thread. /proc is walked at first and when the known ones have ended, beside that thread.

    Args:
        paths: the logs, absolute.
        find: gives the pids that have one of them open for writing.
    """

    def __init__(
        self, paths: Sequence[str], find: Callable[[Sequence[str]], Sequence[int]] = writers_of
    ) -> None:
        self._paths = paths
        self._find = find
        self._search: Background[list[ProcessId]] = Background("stoker-log-writers")
        self._known: list[ProcessId] | None = None  # not looked for yet
        self._due = float("-inf")
        self.gone = False
        """There were some, all of them have ended, and nobody else writes."""

    @property
    def seen(self) -> bool:
        """Whether somebody was seen to write."""
        return bool(self._known)

    def look(self, now: float) -> None:
        """See who is left. `now`: monotonic seconds."""
        if self.gone or not self._paths:
            return
        if self._search.busy:
            found = self._search.poll()
            if found is not None:
                self.gone = bool(self._known) and not found
                self._known = found
        elif now >= self._due:
            self._due = now + LOOK_S
            if self._known is None or (self._known and not any(map(is_alive, self._known))):
                self._search.start(self._look_for)

    def _look_for(self) -> list[ProcessId]:
        return [known for pid in self._find(self._paths) if (known := identify(pid)) is not None]
