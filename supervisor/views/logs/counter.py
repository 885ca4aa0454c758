"""The thread that counts: newlines for line numbers, matches for searches and filters, chunk after chunk.

What it makes are running totals (`file.Counts`) that others read while they grow. It reads a chunk at a time, in turn
with whoever shows lines, and ends between two chunks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from supervisor.views.logs.file import CHUNK_BYTES, STRIDE_BYTES, Counts, LogFile
from supervisor.views.logs.query import Query
from supervisor.views.logs.sources import LogRef
from supervisor.views.logs.stream import hits_of

LOOK_S = 0.5
REPORT_EVERY = 64
JOIN_S = 3.0
# After a key nothing is counted for so long: each letter of a search begins another count, and on a busy machine the thread that
# counts would take the turns of the one that shows what is typed.
REST_S = 0.3


@dataclass(slots=True, eq=False)
class Task:
    """One log's count of what a query means; without a query, of its newlines. `tail`: in what is not a whole chunk."""

    ref: LogRef
    file: LogFile
    query: Query | None = None
    counts: Counts = field(default_factory=Counts)
    tail: int = 0
    tail_size: int = -1
    generation: int = 0

    @property
    def done_bytes(self) -> int:
        """How far the log is counted."""
        return self.file.size if self.is_done else min(self.counts.chunks * CHUNK_BYTES, self.file.size)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to count now."""
        return self.tail_size == self.file.size and self.generation == self.file.generation

    @property
    def total(self) -> int:
        """What was found so far."""
        return self.counts.total + self.tail

    def step(self) -> bool:
        """Count one chunk; False: nothing is left to count."""
        if self.generation != self.file.generation:
            self.generation = self.file.generation
            self.counts = self.file.newlines if self.query is None else Counts()
            self.tail, self.tail_size = 0, -1
        size = self.file.size
        if self.tail_size == size:
            return False
        chunk = self.counts.chunks
        stop = (chunk + 1) * CHUNK_BYTES
        if self.query is None:
            if stop > size:
                self.tail_size = size
                return True
            # A chunk's newlines: short of them only when the file was cut meanwhile, which the next look finds.
            self.counts.append(self.file.read(stop - CHUNK_BYTES, CHUNK_BYTES).count(b"\n"))
            return True
        found = len(hits_of(self.file, chunk, self.query, self.ref))
        if stop > size or not self._is_settled(stop, size):
            self.tail, self.tail_size = found, size
            return True
        self.counts.append(found)
        self.tail = 0
        return True

    def _is_settled(self, stop: int, size: int) -> bool:
        """Whether the last line that begins before `stop` cannot change any more."""
        if size - stop > STRIDE_BYTES or self.file.read(stop - 1, 1) == b"\n":
            return True
        return b"\n" in self.file.read(stop, size - stop)


class Scanner:
    """Counts in the order of `work`, again when the logs have grown. Its thread starts with the first task.

    Args:
        report: called in this thread now and then while counts grow, and when all is counted.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._tasks: tuple[Task, ...] = ()
        self._rest_until = 0.0
        self._thread = threading.Thread(target=self._run, name="stoker-log-scan", daemon=True)

    def stop(self) -> None:
        """End the thread, at most some seconds later (a dead network mount cannot be interrupted)."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def work(self, tasks: tuple[Task, ...]) -> None:
        """Count these from now on, the first ones first; tasks known already continue where they were."""
        with self._lock:
            self._tasks = tasks
        if tasks and not self._thread.is_alive() and not self._stop.is_set():
            self._thread.start()
        self._wake.set()

    def rest(self) -> None:
        """A person is at the keys: count on a little later."""
        self._rest_until = time.monotonic() + REST_S

    def look(self) -> None:
        """The logs may have grown."""
        self._wake.set()

    def _run(self) -> None:
        since = 0
        while not self._stop.is_set():
            if (rest_s := self._rest_until - time.monotonic()) > 0:
                self._stop.wait(rest_s)
                continue
            with self._lock:
                tasks = self._tasks
            try:
                is_counting = any(task.step() for task in tasks)
            except Exception:  # noqa: BLE001 - a file was closed or cut under it: what is left is counted at the next look
                is_counting = False
            if is_counting:
                since += 1
                if since % REPORT_EVERY == 0:
                    self._report()
                continue
            if since:
                since = 0
                self._report()
            self._wake.wait(LOOK_S)
            self._wake.clear()
