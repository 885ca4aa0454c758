"""The thread that reads for one view: it owns the viewport, moves it on request, and makes the pages.

It runs one command after another and adds up scrolling; a long command is aborted when another arrives.
Between commands it counts lines and matches, a chunk at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import assert_never

from supervisor.run.paths import NodePaths
from supervisor.views.format import part
from supervisor.views.logs import reading as lc
from supervisor.views.logs.file import CHUNK_BYTES
from supervisor.views.logs.open_logs import NothingThereError
from supervisor.views.logs.viewport import LogViewport

# Pages of new lines are at least this many seconds apart and take at most a quarter of the time (64 ranks at
# 10,000 lines/s: 21 ms a page). Commands are answered at once.
PAGE_S = 0.1
REST_RATIO = 3.0
# While nobody sees the pages, the thread checks this often for requests.
HIDDEN_S = 0.25
JOIN_S = 3.0
# A search that takes longer reports its progress.
PATIENCE_S = 0.3
# Counted at once, before checking the logs again.
COUNT_S = 0.03
# Facts of the run and the screen: they interrupt nothing and are never aborted.
_KEPT = (lc.Update, lc.Size, lc.KeepCause)


class Interrupted(Exception):  # noqa: N818 - no error: another command came
    """Another command arrived, or the view is closed."""


class LogSession:
    """Reads the logs of one node of a run for one view.

    Args:
        node: the node's folder, which lists the run's logs.
        deliver: gets pages and remarks, in this thread.
        newest: this many newest attempts form one log, with the ranks' last lines; 0: a person chooses one.
    """

    def __init__(self, node: NodePaths, deliver: Callable[[lc.Answer], object], *, newest: int = 0) -> None:
        self._deliver = deliver
        self._commands: deque[lc.Command] = deque()
        self._stop = threading.Event()
        self._urgent = threading.Event()
        # A command and its arrival flag change together: otherwise it may interrupt itself.
        self._asking = threading.Lock()
        self._asked = threading.Event()
        self._view = LogViewport(node, self._check, newest)
        self._page_s: float | None = PAGE_S
        self._began = self._due = 0.0  # start of the current command; time of the next page of new lines
        self._checks = 0
        self._remarked_at = 0.0
        # A daemon, because a read from a dead network mount cannot be interrupted: leaving must still work.
        self._thread = threading.Thread(target=self._run, name="stoker-log-pages", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def ask(self, *commands: lc.Command) -> None:
        """Request something; from any thread."""
        for command in commands:
            with self._asking:
                self._commands.append(command)
                if not isinstance(command, (*_KEPT, lc.Match)):  # visit matches one after another
                    self._urgent.set()
        self._asked.set()

    def pace(self, page_s: float | None) -> None:
        """Make pages of new lines at most this often; None: not at all, because nobody sees them."""
        if page_s != self._page_s:
            self._page_s = page_s
            self._asked.set()

    def ask_to_stop(self) -> None:
        """End the thread after its current work; does not wait."""
        self._stop.set()
        self._asked.set()

    def stop(self) -> None:
        """End the thread and close the files; waits at most a few seconds."""
        self.ask_to_stop()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        if not self._thread.is_alive():
            self._view.logs.close()

    # -- the thread ------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Called for each chunk during long work."""
        if self._stop.is_set() or self._urgent.is_set():
            raise Interrupted
        self._checks += 1
        now = time.monotonic()
        if now - self._began > PATIENCE_S and now - self._remarked_at > PAGE_S:
            self._remarked_at = now
            size = sum(self._view.logs.ends) or 1
            done = min(self._checks * CHUNK_BYTES / size, 1.0)
            self._deliver(lc.Remark(f"{part(done)} searched; Esc gives up", done_ratio=done))

    def _run(self) -> None:
        pending = False
        while not self._stop.is_set():
            try:
                if self._count():
                    pending = True
                else:
                    self._wait()
                if self._stop.is_set():
                    return
                try:
                    pending |= self._turn()
                except NothingThereError as error:
                    self._deliver(lc.Remark(str(error), good=False))
                    pending = True
                now = time.monotonic()
                if pending and self._page_s is not None and now >= self._due:
                    self._begin()
                    self._deliver(self._view.page())
                    pending = False
                    ended = time.monotonic()
                    self._due = max(now + self._page_s, ended + REST_RATIO * (ended - now))
            except Interrupted:
                continue
            except Exception as error:  # noqa: BLE001 - a log view that stops without a word would lie
                self._deliver(
                    lc.Remark(f"reading the log failed: {type(error).__name__}: {error}", good=False)
                )
                self._stop.wait(PAGE_S)  # a repeated failure must not use up a processor

    def _begin(self) -> None:
        self._began, self._checks = time.monotonic(), 0

    def _count(self) -> bool:
        """Count for a moment, unless a request is waiting; returns whether anything was left to count."""
        until = time.monotonic() + COUNT_S
        has_counted = False
        while not (self._commands or self._stop.is_set()) and self._page_s is not None:
            if time.monotonic() > until:
                break
            if not self._view.logs.counter.step(is_asked=self._view.is_moved):
                self._due = self._due if not has_counted else 0.0  # all is counted, so the next page shows it
                break
            has_counted = True
        return has_counted

    def _wait(self) -> None:
        """Wait for a request or the next check of the logs."""
        if not self._commands:
            self._asked.wait(HIDDEN_S if self._page_s is None else max(PAGE_S, self._due - time.monotonic()))
        self._asked.clear()

    def _turn(self) -> bool:
        """Carry out the request; returns whether the page may have changed on its own."""
        asked = False
        self._urgent.clear()
        self._begin()
        view = self._view
        for command in self._taken():
            asked = True
            try:
                self._do(command)
            except Interrupted:
                if isinstance(command, _KEPT):  # it was requested once and stays in effect
                    with self._asking:
                        self._commands.appendleft(command)
                raise
        if self._page_s is None and not asked:
            return True
        changed, notes = view.refresh()
        for note in notes:
            self._deliver(lc.Remark(note, good=False))
        if asked:
            self._deliver(view.page())
            return False
        return changed

    def _taken(self) -> Iterator[lc.Command]:
        """The pending command; scrolling adds up."""
        scrolled = 0
        while self._commands:
            with self._asking:
                command = self._commands.popleft()
                self._urgent.clear()
            if isinstance(command, lc.Scroll):
                scrolled += command.rows
                continue
            if isinstance(command, lc.Show) and self._commands and isinstance(self._commands[0], lc.Show):
                continue  # keys arrived faster than answers: apply only the newest filter
            if scrolled:
                yield lc.Scroll(scrolled)
                scrolled = 0
            yield command
        if scrolled:
            yield lc.Scroll(scrolled)

    def _do(self, command: lc.Command) -> None:
        view = self._view
        match command:
            case lc.Update():
                view.update(command.state, command.recorded_t, command.nodes)
            case lc.Size():
                view.resize(max(command.rows, 1), command.cursor)
            case lc.KeepCause():
                view.keep_cause(command.cause)
            case lc.Scroll():
                view.scroll(command.rows)
            case lc.Start():
                view.to_start()
            case lc.Follow():
                view.follow(command.on)
            case lc.ToLine():
                view.to_line(command.stream, command.number)
            case lc.ToTime():
                view.to_time(command.t, has_day=command.has_day)
            case lc.ToPlace():
                view.to_place(command.at)
            case lc.Show():
                view.show(command.query, command.cursor)
            case lc.Attempt():
                view.to_attempt(partial(view.logs.other_attempt, command.way))
            case lc.Find():
                view.find(command.query, command.cursor)
            case lc.Match():
                view.match(command.cursor, command.way)
            case lc.Copy():
                self._deliver(view.copied(command.first, command.last))
            case lc.Point():
                self._deliver(lc.Pointed(view.point(command.row)))
            case _ as unreachable:
                assert_never(unreachable)
