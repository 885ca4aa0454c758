"""The thread that reads for the log screen: it holds the place, moves it as asked, and makes the pages.

One wish after another, the newest of a kind where several wait; a wish that takes long is given up when another
comes. The screen never waits for a file: it moves by itself only to what lies in memory.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import assert_never

from supervisor.run.paths import NodePaths
from supervisor.sources.tail.wake import FolderEvents, Waker, folder_events
from supervisor.views.logs import commands as lw
from supervisor.views.logs.counter import Scanner
from supervisor.views.logs.navigation import LogWalker
from supervisor.views.logs.viewport import NothingThereError

# Data-driven pages: the first at once, then so many seconds apart. Keys are answered at once.
PAGE_S = 0.1
# Without events (a network filesystem) growth is seen this late.
LOOK_S = 0.25
JOIN_S = 3.0
# A search that takes longer says how far it is.
PATIENCE_S = 0.3


class Interrupted(Exception):  # noqa: N818 - no error: another wish came
    """Another wish came, or the screen is closed."""


class LogSession:
    """Reads the logs of one node of a run for one screen.

    Args:
        node: where the run's logs are listed.
        deliver: gets pages and remarks, in this thread.
        events: where wake-ups come from; a function that returns None leaves polling.
    """

    def __init__(
        self,
        node: NodePaths,
        deliver: Callable[[lw.News], object],
        *,
        events: Callable[[Callable[[], None]], FolderEvents | None] = folder_events,
    ) -> None:
        self._deliver = deliver
        self._wishes: queue.SimpleQueue[lw.Wish] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._urgent = threading.Event()
        # Whoever holds it uses the desk: the reading thread, or for a moment the screen's.
        self._lock = threading.Lock()
        self._waker = Waker(events)
        self._scanner = Scanner(self._counted)
        self._scanned = threading.Event()
        self._desk = LogWalker(node, self._check)
        self._began = 0.0
        self._said_at = 0.0
        # A daemon, because a read from a dead network mount cannot be interrupted: leaving must still work.
        self._thread = threading.Thread(target=self._run, name="stoker-log-pages", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()
        self._scanner.start()

    def ask(self, *wishes: lw.Wish) -> None:
        """Ask for something; any thread may."""
        for wish in wishes:
            self._wishes.put(wish)
            if not isinstance(wish, lw.Known | lw.Size):
                self._urgent.set()
        self._waker.poke()

    def move(self, wish: lw.Move) -> lw.Page | None:
        """The page that a move leads to, read in the calling thread; None: the reading thread was asked for it.

        At once only where nothing is waited for: that thread is idle, and what is to be read lies in memory. Handing a
        key over and back is two switches of threads, each of milliseconds where the processors are busy.
        """
        if self._lock.acquire(blocking=False):
            try:
                if self._wishes.empty() and not self._urgent.is_set() and self._desk.is_at_hand(wish):
                    self._do(wish)
                    return self._desk.page()
            finally:
                self._lock.release()
        self.ask(wish)
        return None

    def stop(self) -> None:
        """End the threads and close the files; waits at most some seconds."""
        self._stop.set()
        self._waker.poke()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)
        self._scanner.stop()
        if not self._thread.is_alive():
            self._desk.close()
            self._waker.close()

    # -- the thread ------------------------------------------------------------------------------------

    def _counted(self) -> None:
        """From the counting thread: numbers have changed."""
        self._scanned.set()
        self._waker.poke()

    def _check(self) -> None:
        """Called while something takes long."""
        if self._stop.is_set() or self._urgent.is_set():
            raise Interrupted
        now = time.monotonic()
        if now - self._began > PATIENCE_S and now - self._said_at > PAGE_S:
            self._said_at = now
            self._deliver(lw.Said(f"looking through the log… {self._desk.scanned_ratio:.0%}; Esc gives up"))

    def _run(self) -> None:
        due = 0.0
        pending = False
        while not self._stop.is_set():
            now = time.monotonic()
            wait_s = min(LOOK_S, max(due - now, 0.0)) if pending else LOOK_S
            self._waker.wait(wait_s if self._wishes.empty() else 0.0)
            if self._stop.is_set():
                return
            try:
                with self._lock:
                    pending |= self._turn()
            except Interrupted:
                continue
            except NothingThereError as error:
                self._deliver(lw.Said(str(error), good=False))
            except Exception as error:  # noqa: BLE001 - a log screen that stops without a word would lie
                self._deliver(lw.Said(f"reading the log failed: {type(error).__name__}: {error}", good=False))
            now = time.monotonic()
            if pending and now >= due:
                pending = False
                due = now + PAGE_S
                with self._lock, contextlib.suppress(Interrupted):
                    self._began = now
                    self._deliver(self._desk.page())

    def _turn(self) -> bool:
        """Do what is wished; whether the page may have changed by itself."""
        asked = False
        self._urgent.clear()
        self._began = time.monotonic()
        for wish in self._taken():
            asked = True
            self._do(wish)
        changed, notes = self._desk.refresh(time.time())
        for note in notes:
            self._deliver(lw.Said(note, good=False))
        for folder in self._desk.new_folders():
            self._waker.watch(folder)
        if self._desk.work_changed:
            self._scanner.work(self._desk.tasks())
        if changed:
            self._scanner.look()
        if asked:
            self._deliver(self._desk.page())
            return False
        if self._scanned.is_set():
            self._scanned.clear()
            changed |= self._desk.counts_matter()
        return changed

    def _taken(self) -> Iterator[lw.Wish]:
        """What waits; scrolling adds up."""
        scrolled = 0
        while not self._wishes.empty():
            wish = self._wishes.get()
            if isinstance(wish, lw.Scroll):
                scrolled += wish.rows
                continue
            if scrolled:
                yield lw.Scroll(scrolled)
                scrolled = 0
            yield wish
        if scrolled:
            yield lw.Scroll(scrolled)

    def _do(self, wish: lw.Wish) -> None:
        desk = self._desk
        match wish:
            case lw.Known():
                desk.know(wish.state)
            case lw.Size():
                desk.height = max(wish.rows, 1)
            case lw.Scroll():
                desk.scroll(wish.rows)
            case lw.Start():
                desk.to_start()
            case lw.Follow():
                desk.follow(wish.on)
            case lw.ToLine():
                desk.to_line(wish.stream, wish.number)
            case lw.ToTime():
                desk.to_time(wish.t, has_day=wish.has_day)
            case lw.ToPlace():
                desk.to_place(wish.at)
            case lw.Show():
                desk.show(wish.query, wish.cursor)
            case lw.Fold():
                desk.fold(wish.cursor)
            case lw.Attempt():
                desk.other_attempt(wish.way)
            case lw.Find():
                desk.find(wish.query, wish.cursor)
            case lw.Match():
                desk.match(wish.cursor, wish.way)
            case lw.Copy():
                self._deliver(desk.copied(wish.first, wish.last))
            case lw.Point():
                self._deliver(lw.Pointed(desk.point(wish.row)))
            case _ as unreachable:
                assert_never(unreachable)
