"""Two threads for large logs: one matches windows ahead of the caller, which reads and evaluates.

Hyperscan works without the interpreter's lock, counting lines does not: on 1 GiB the caller's half and the
engine's half take about as long. A third thread gained nothing here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from supervisor.diagnosis.scan.windows import LARGE_LOG_BYTES, Matched, Window, match_in_turn, match_window

if TYPE_CHECKING:
    import queue
    import threading

    from supervisor.diagnosis.scan.windows import Matcher

MOST_AHEAD = 4
POLL_S = 1.0


class AheadMatcher:
    """A matcher that works ahead in a thread of its own once a log turns out to be large."""

    def __init__(self, matcher: Matcher, from_bytes: int = LARGE_LOG_BYTES, cores: int | None = None) -> None:
        self._matcher = matcher
        self._from_bytes = from_bytes
        self._cores = cores

    def scan(self, block: bytes, found: Callable[[int, int], None]) -> None:
        """See `Matcher.scan`."""
        self._matcher.scan(block, found)

    def each(self, windows: Iterable[Window]) -> Generator[Matched, None, None]:
        """See `Matcher.each`. The thread ends when the windows do, or when this iterator is closed."""
        rest = iter(windows)
        seen = 0
        while seen < self._from_bytes:
            window = next(rest, None)
            if window is None:
                return
            seen += len(window.data)
            yield match_window(self._matcher.scan, window)
        if (self._cores or _cores()) < 2:
            yield from match_in_turn(self._matcher.scan, rest)
        else:
            yield from self._ahead(rest)

    def _ahead(self, windows: Iterator[Window]) -> Iterator[Matched]:
        import threading
        from queue import SimpleQueue

        todo: queue.SimpleQueue[Window | None] = SimpleQueue()
        done: queue.SimpleQueue[Matched | BaseException] = SimpleQueue()
        closing = threading.Event()

        def work() -> None:
            while (window := todo.get()) is not None and not closing.is_set():
                try:
                    done.put(match_window(self._matcher.scan, window))
                except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                    done.put(error)
                    return

        thread = threading.Thread(target=work, name="stoker-scan-ahead", daemon=True)
        thread.start()
        try:
            ahead = 0
            for window in windows:
                todo.put(window)
                ahead += 1
                if ahead >= MOST_AHEAD:
                    yield _next(done, thread)
                    ahead -= 1
            for _ in range(ahead):
                yield _next(done, thread)
        finally:
            closing.set()
            todo.put(None)
            thread.join()


def _next(done: queue.SimpleQueue[Matched | BaseException], thread: threading.Thread) -> Matched:
    from queue import Empty

    while True:
        try:
            result = done.get(timeout=POLL_S)
        except Empty:
            if thread.is_alive():
                continue
            raise RuntimeError("the scanning thread ended without a result") from None
        if isinstance(result, BaseException):
            raise result
        return result


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
