"""The only thread that reads the run directory, so that the screen never waits for a disk, and the requests that it sends."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from supervisor.run.control import RequestArgs
from supervisor.run.events import RequestKind
from supervisor.run.ownership import NotRequested, Offer, ask
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.state import RunState
from supervisor.sources.tail.wake import Waker

# At most two deliveries a second, which bounds what a chart costs that is drawn anew with each; a change after a
# pause wakes the reader at once, and on a filesystem without notifications a quiet directory is read four times.
BUSY_S = 0.5
IDLE_S = 0.25
# The change watcher is loaded after the first paints.
WATCH_AFTER_S = 1.0
JOIN_S = 3.0


class Revised(Protocol):
    """A delivery: its revision is the same while nothing changed."""

    @property
    def revision(self) -> int:
        """Counts changes."""


Moment = TypeVar("Moment", bound=Revised)
Read_co = TypeVar("Read_co", bound=Revised, covariant=True)


class Reader(Protocol[Read_co]):
    """The source, used only in the reading thread."""

    def refresh(self) -> Read_co:
        """Read new data."""


class Feeder(Generic[Moment]):
    """Reads and delivers, one snapshot at a time.

    The next one is read only after `taken` was called for the last, so a slow screen skips moments.

    Args:
        reader: the reader.
        deliver: called in this thread with each changed snapshot.
        trouble: called in this thread with an error, as one line.
        watch: let changes in the run's folders wake it; otherwise it polls.
    """

    def __init__(
        self,
        reader: Reader[Moment],
        deliver: Callable[[Moment], object],
        trouble: Callable[[str], object],
        *,
        watch: bool = True,
    ) -> None:
        self._reader, self._deliver, self._trouble = reader, deliver, trouble
        self._may_watch = watch
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._lock = threading.Lock()
        self._waker: Waker | None = None
        self._watched: set[str] = set()
        self._began = time.monotonic()
        self._written_t = float("-inf")
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # A daemon, because a read from a dead network mount cannot be interrupted: leaving must still work.
        self._thread = threading.Thread(target=self._run, name="stoker-view-reader", daemon=True)
        self._revision = -1
        self._said = ""
        self._awaited = False
        self._first: Moment | None = None
        self._came = threading.Event()

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def start_with_first(self, timeout_s: float) -> Moment | None:
        """Start reading, and wait for the first moment; None if it takes longer, and is delivered like the others."""
        self._awaited = True
        self.start()
        self._came.wait(timeout_s)
        with self._lock:
            self._awaited = False
            first, self._first = self._first, None
        return first

    def ask_to_stop(self) -> None:
        """End the thread after its current work; does not wait."""
        self._stop.set()
        self._free.set()
        self._poke()

    def stop(self) -> None:
        """End the thread and wait for it, at most a few seconds."""
        self.ask_to_stop()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def taken(self) -> None:
        """The last snapshot is on the screen."""
        self._free.set()

    def submit(self, job: Callable[[], None]) -> None:
        """Run something that touches the disk (a request) in this thread, soon."""
        self._jobs.put(job)
        self._poke()

    def _poke(self) -> None:
        self._wake.set()
        with self._lock:
            if self._waker is not None:
                self._waker.poke()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._do_jobs()
                if self._free.wait(BUSY_S):
                    self._pause(after_news=self._read())
            self._do_jobs()
        finally:
            getattr(self._reader, "close", tuple)()
            with self._lock:
                if self._waker is not None:
                    self._waker.close()
                    self._waker = None

    def _pause(self, *, after_news: bool) -> None:
        """Wait for a change, or for a while. A write after a quiet period ends the wait, so that no line is delayed."""
        now = time.monotonic()
        until = now + (BUSY_S if after_news else IDLE_S)
        if now - self._began >= WATCH_AFTER_S:
            self._watch()
        if self._waker is not None:
            was_quiet = now - self._written_t > BUSY_S
            paths = self._waker.wait(until - now)
            if paths is None or paths:
                self._written_t = time.monotonic()
                if was_quiet or not after_news:
                    return
        self._wake.wait(max(until - time.monotonic(), 0.0))
        self._wake.clear()

    def _watch(self) -> None:
        """Let changes of the reader's folders wake this thread, if it names any."""
        folders = set(getattr(self._reader, "folders", tuple)())
        if self._waker is None and folders:
            with self._lock:
                self._waker = Waker(watch=self._may_watch)
        if self._waker is not None:
            self._watched |= {folder for folder in folders - self._watched if self._waker.watch(folder)}

    def _do_jobs(self) -> None:
        while not self._jobs.empty():
            job = self._jobs.get()
            try:
                job()
            except Exception as error:  # noqa: BLE001 - a failed request is shown; reading continues
                self._report(f"{type(error).__name__}: {error}")

    def _read(self) -> bool:
        """Read, and deliver anything new; returns whether there was any."""
        try:
            snapshot = self._reader.refresh()
        except Exception as error:  # noqa: BLE001 - a view that stops without a word would lie
            self._report(f"reading the run failed: {type(error).__name__}: {error}")
            return False
        if snapshot.revision == self._revision:
            return False
        self._revision = snapshot.revision
        self._free.clear()
        with self._lock:
            is_awaited, self._awaited = self._awaited, False
            if is_awaited:
                self._first = snapshot
        if is_awaited:
            self._came.set()
        else:
            self._deliver(snapshot)
        return True

    def _report(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._trouble(text)


# A keeper answers within a second, for a stop once it has begun. After this long, report that it did not.
PATIENCE_S = 8.0
# An answer means that the keeper took a request, which then takes seconds. These are done with the answer.
_DONE = frozenset({RequestKind.NOTE, RequestKind.STACKS, RequestKind.ANSWER, RequestKind.HOLD})


class Answer(NamedTuple):
    """One line for the person. `good` is None while undecided."""

    text: str
    good: bool | None


@dataclass(frozen=True, slots=True)
class Adopter:
    """Adopts a run whose keeper died, or continues a finished one: examines the effect, and does it.

    Called in the reading thread; may raise.
    """

    examine: Callable[[RunPaths], Offer]
    adopt: Callable[[RunPaths], None]


class RequestClient:
    """Sends requests and watches for their answers. What `sender` returns runs in the reading thread, the rest on screen."""

    def __init__(self, run: RunPaths) -> None:
        self.run = run
        self._pending: dict[str, tuple[RequestKind, float]] = {}

    @property
    def node(self) -> NodePaths:
        """The part of node 0."""
        return self.run.node()

    def sender(
        self,
        kind: RequestKind,
        attempt: int | None,
        args: RequestArgs | None,
        now: float,
        report: Callable[[Answer], object],
    ) -> Callable[[], None]:
        """A job for the reading thread that sends a request and reports the result."""

        def put() -> None:
            try:
                request_id = ask(self.run, kind, if_attempt=attempt, args=args)
            except NotRequested as why:
                report(Answer(f"{word_of(kind)}: not sent: {why}", False))
            except OSError as error:
                report(Answer(f"{word_of(kind)}: not sent: {error.strerror}: {self.run.control}", False))
            else:
                self._pending[request_id] = kind, now
                report(Answer(f"{word_of(kind)}: asked the supervisor process", None))

        return put

    def answers(self, state: RunState, now: float) -> list[Answer]:
        """The results of requests since the last call; a missing answer is reported once."""
        found: list[Answer] = []
        for request_id, (kind, sent_t) in list(self._pending.items()):
            text, word = state.answered.get(request_id), word_of(kind)
            if text is not None:
                self._pending.pop(request_id, None)
                done = "done" if kind in _DONE else "accepted"
                more = " · p shows them" if kind is RequestKind.STACKS else ""
                is_done = text == "done"
                said = f"{word}: {done}{more}" if is_done else f"{word} refused: {text}"
                found.append(Answer(said, is_done))
            elif now - sent_t > PATIENCE_S:
                self._pending[request_id] = kind, math.inf
                text = f"{word}: no answer yet; is the supervisor process alive? its log is keeper.log"
                found.append(Answer(text, False))
        return found


def word_of(kind: RequestKind) -> str:
    """The name of a request: ``stop now``."""
    return kind.value.replace("_", " ")
