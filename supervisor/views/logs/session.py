"""The reader thread of a view, which owns the viewport, moves it on request, and builds pages.

A request is a callable that takes the viewport. The thread handles requests one at a time, and a
long-running request is aborted when a new one arrives. Between requests, it counts lines and matches chunk by chunk.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from supervisor.run.paths import NodePaths
from supervisor.views.format import part
from supervisor.views.logs.file import CHUNK_BYTES
from supervisor.views.logs.open_logs import NothingThereError
from supervisor.views.logs.reading import Answer, Remark
from supervisor.views.logs.viewport import LogViewport

# Pages of new lines are at least this many seconds apart and take at most a quarter of the time. Requests are
# answered at once.
PAGE_S = 0.1
REST_RATIO = 3.0
# How long `stop` waits for the thread to end.
JOIN_S = 3.0
# A search that takes longer than this reports its progress.
PATIENCE_S = 0.3
# How long to count before the logs are checked again.
COUNT_S = 0.03


Request: TypeAlias = Callable[[LogViewport], Answer | None]


@dataclass(frozen=True, slots=True)
class Scroll:
    """A request to scroll by `rows` (negative is up). Consecutive requests are combined."""

    rows: int

    def __call__(self, view: LogViewport) -> Answer | None:
        """Move the viewport."""
        view.scroll(self.rows)
        return None


class Interrupted(Exception):  # noqa: N818 - not an error, but another request
    """A new request has arrived, or the view was closed."""


class LogSession:
    """Reads the logs of a node for a view.

    Args:
        node: the node's directory, which lists the run's logs.
        deliver: receives pages and remarks, on the session's thread.
    """

    def __init__(self, node: NodePaths, deliver: Callable[[Answer], object]) -> None:
        self._deliver = deliver
        self._requests: deque[tuple[Request, bool]] = deque()  # True: a state update, which is never aborted
        self._stop = threading.Event()
        self._urgent = threading.Event()
        # Change a request and its arrival flag together. Otherwise the request may interrupt itself.
        self._asking = threading.Lock()
        self._asked = threading.Event()
        self._view = LogViewport(node, self._check)
        self._began = self._due = 0.0  # start of the current request; time of the next page of new lines
        self._checks = 0
        self._remarked_at = 0.0
        # Use a daemon thread, because an uninterruptible read from a dead network mount must not block exit.
        self._thread = threading.Thread(target=self._run, name="stoker-log-pages", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def ask(self, request: Request) -> None:
        """Submit a request from any thread, aborting the current one."""
        with self._asking:
            last = self._requests[-1][0] if self._requests else None
            if isinstance(request, Scroll) and isinstance(last, Scroll):
                self._requests[-1] = (Scroll(last.rows + request.rows), False)
            else:
                self._requests.append((request, False))
            self._urgent.set()
        self._asked.set()

    def tell(self, *facts: Request) -> None:
        """Inform the thread of changes in the run or the TUI. They never interrupt a request and are never aborted themselves."""
        with self._asking:
            self._requests.extend((fact, True) for fact in facts)
        self._asked.set()

    def ask_to_stop(self) -> None:
        """Tell the thread to exit when its current work is done, without waiting for it."""
        self._stop.set()
        self._asked.set()

    def stop(self) -> None:
        """Stop the thread, waiting at most a few seconds, and close the files."""
        self.ask_to_stop()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        if not self._thread.is_alive():
            self._view.logs.close()

    # -- the thread ------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Abort if a new request has arrived. Long operations call this once per chunk."""
        if self._stop.is_set() or self._urgent.is_set():
            raise Interrupted
        self._checks += 1
        now = time.monotonic()
        if now - self._began > PATIENCE_S and now - self._remarked_at > PAGE_S:
            self._remarked_at = now
            size = sum(self._view.logs.ends) or 1
            done = min(self._checks * CHUNK_BYTES / size, 1.0)
            self._deliver(Remark(f"{part(done)} searched; Esc gives up"))

    def _run(self) -> None:
        is_stale = False  # whether the shown page is older than the logs
        while not self._stop.is_set():
            try:
                is_asked = self._serve()
                is_stale |= self._refresh()
                if is_asked or (is_stale and time.monotonic() >= self._due):
                    self._make_page()
                    is_stale = False
                if self._count():
                    is_stale = True
                else:
                    self._wait(max(PAGE_S, self._due - time.monotonic()))
            except Interrupted:
                is_stale = True
            except Exception as error:  # noqa: BLE001 - a log view that stops silently would mislead
                is_stale = True
                text = f"reading the log failed: {type(error).__name__}: {error}"
                self._deliver(Remark(text, good=False))
                self._stop.wait(PAGE_S)  # a repeated failure must not use up a CPU core

    def _serve(self) -> bool:
        """Handle all pending requests. Return whether there were any."""
        is_asked = False
        while self._requests and not self._stop.is_set():
            with self._asking:
                request, is_fact = self._requests.popleft()
                self._urgent.clear()
            is_asked = True
            self._began, self._checks = time.monotonic(), 0
            try:
                answer = request(self._view)
            except NothingThereError as error:
                answer = Remark(str(error), good=False)
            except Interrupted:
                if is_fact:
                    with self._asking:
                        self._requests.appendleft((request, is_fact))
                raise
            if answer is not None:
                self._deliver(answer)
        return is_asked

    def _refresh(self) -> bool:
        """Check the logs and report what happened to them. Return whether anything changed."""
        changed, notes = self._view.refresh()
        for note in notes:
            self._deliver(Remark(note, good=False))
        return changed

    def _make_page(self) -> None:
        began = self._began = time.monotonic()
        self._checks = 0
        self._deliver(self._view.page())
        ended = time.monotonic()
        self._due = max(began + PAGE_S, ended + REST_RATIO * (ended - began))

    def _count(self) -> bool:
        """Count for a short while unless a request is pending. Return whether there was anything left to count."""
        until = time.monotonic() + COUNT_S
        has_counted = False
        while not (self._requests or self._stop.is_set()) and time.monotonic() < until:
            if not self._view.logs.count(is_moved=self._view.is_moved):
                break
            has_counted = True
        return has_counted

    def _wait(self, seconds: float) -> None:
        """Wait for a request, or until it is time to check the logs again."""
        if not self._requests:
            self._asked.wait(seconds)
        self._asked.clear()
