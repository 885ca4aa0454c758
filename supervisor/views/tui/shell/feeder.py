"""The only thread that reads the run directory and sends requests, so the TUI never waits for a disk."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from supervisor.run.control import RequestArgs
from supervisor.run.events import RequestKind
from supervisor.run.ownership import NotRequested, Offer, ask
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.state import RunState

# At most two deliveries a second, which limits the cost of redrawing a chart with each delivery. A quiet
# directory is read four times a second, so that changes appear quickly.
BUSY_S = 0.5
IDLE_S = 0.25
JOIN_S = 3.0


class Revised(Protocol):
    """Something to deliver. Its revision stays the same while nothing changes."""

    @property
    def revision(self) -> int:
        """The number of changes so far."""


Moment = TypeVar("Moment", bound=Revised)


class Feeder(Generic[Moment]):
    """A reader thread that delivers one snapshot at a time.

    The next read starts only after `taken` is called, so a slow screen skips snapshots.

    Args:
        refresh: reads new data and returns the result; called in this thread, like the other callbacks.
        deliver: called with each changed snapshot.
        trouble: called with a one-line error message.
        close: called when the thread exits.
    """

    def __init__(
        self,
        refresh: Callable[[], Moment],
        deliver: Callable[[Moment], object],
        trouble: Callable[[str], object],
        close: Callable[[], object] = tuple,
    ) -> None:
        self._refresh, self._deliver, self._trouble, self._close = refresh, deliver, trouble, close
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Use a daemon thread, because an uninterruptible read from a dead network mount must not block exit.
        self._thread = threading.Thread(target=self._run, name="stoker-view-reader", daemon=True)
        self._revision = -1
        self._said = ""

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Tell the thread to exit when it finishes its current work, without waiting for it."""
        self._stop.set()
        self._free.set()
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread, waiting at most a few seconds."""
        self.ask_to_stop()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def taken(self) -> None:
        """Report that the last snapshot has been displayed."""
        self._free.set()

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job that touches the disk, such as a request, to run in this thread soon."""
        self._jobs.put(job)
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._do_jobs()
                if self._free.wait(BUSY_S):
                    self._wake.wait(BUSY_S if self._read() else IDLE_S)
                    self._wake.clear()
            self._do_jobs()
        finally:
            self._close()

    def _do_jobs(self) -> None:
        while not self._jobs.empty():
            job = self._jobs.get()
            try:
                job()
            except Exception as error:  # noqa: BLE001 - show a failed request, keep reading
                self._report(f"{type(error).__name__}: {error}")

    def _read(self) -> bool:
        """Read new data and deliver a snapshot if anything changed. Return whether anything changed."""
        try:
            snapshot = self._refresh()
        except Exception as error:  # noqa: BLE001 - a view that stops silently would mislead
            self._report(f"reading the run failed: {type(error).__name__}: {error}")
            return False
        if snapshot.revision == self._revision:
            return False
        self._revision = snapshot.revision
        self._free.clear()
        self._deliver(snapshot)
        return True

    def _report(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._trouble(text)


# A keeper answers within a second, or to a stop as soon as it begins. Report a missing answer after this.
PATIENCE_S = 8.0
# Most answers mean only that the keeper accepted a request. These requests are done with the answer.
_DONE = frozenset({RequestKind.NOTE, RequestKind.STACKS, RequestKind.ANSWER, RequestKind.HOLD})


class Answer(NamedTuple):
    """A one-line result for the user. `good` is None if the outcome is not known yet."""

    text: str
    good: bool | None


@dataclass(frozen=True, slots=True)
class Adopter:
    """Takes over a run whose keeper died or continues a finished run.

    Call `examine` before `adopt`. Both are called in the reader thread and may raise.
    """

    examine: Callable[[RunPaths], Offer]
    adopt: Callable[[RunPaths], None]


class RequestClient:
    """Sends requests and receives answers. Jobs from `sender` run in the reader thread, everything else in the TUI thread."""

    def __init__(self, run: RunPaths) -> None:
        self.run = run
        self._pending: dict[str, tuple[RequestKind, float]] = {}

    @property
    def node(self) -> NodePaths:
        """Node 0's files."""
        return self.run.node()

    def sender(
        self,
        kind: RequestKind,
        attempt: int | None,
        args: RequestArgs | None,
        now: float,
        report: Callable[[Answer], object],
    ) -> Callable[[], None]:
        """Return a callable, to be run in the reader thread, that sends a request and reports the result."""

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
        """Return answers that arrived since the last call. A missing answer is reported once."""
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


@dataclass(frozen=True, slots=True)
class RunAccess:
    """How a dashboard accesses its run, which may be a recording (`is_recorded`).

    `feeder` is the reader thread, which also sends requests unless `read_only` is true. `adopter` takes over a run
    whose keeper died, and `continuer` starts a finished run's next attempt; either is None if unavailable.
    """

    client: RequestClient
    feeder: Feeder[Any]
    read_only: bool = False
    is_recorded: bool = False
    adopter: Adopter | None = None
    continuer: Adopter | None = None


def word_of(kind: RequestKind) -> str:
    """Return a request's name, such as ``stop now``."""
    return kind.value.replace("_", " ")
