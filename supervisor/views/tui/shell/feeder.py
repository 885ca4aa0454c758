"""The only thread that reads the run directory, so that the screen never waits for a disk, and the requests that it sends."""

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

# At most two deliveries a second, which bounds what a chart costs that is drawn anew with each; a quiet directory
# is read four times, so that no change is shown late.
BUSY_S = 0.5
IDLE_S = 0.25
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
    """

    def __init__(
        self,
        reader: Reader[Moment],
        deliver: Callable[[Moment], object],
        trouble: Callable[[str], object],
    ) -> None:
        self._reader, self._deliver, self._trouble = reader, deliver, trouble
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # A daemon, because a read from a dead network mount cannot be interrupted: leaving must still work.
        self._thread = threading.Thread(target=self._run, name="stoker-view-reader", daemon=True)
        self._revision = -1
        self._said = ""

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """End the thread after its current work; does not wait."""
        self._stop.set()
        self._free.set()
        self._wake.set()

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
            getattr(self._reader, "close", tuple)()

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


@dataclass(frozen=True, slots=True)
class RunAccess:
    """How a dashboard reaches its run.

    `feeder`: the reading thread, which also sends requests. `read_only`: no requests. `is_recorded`: the run is a recording.
    `adopter`: adopts a run whose keeper died. `continuer`: starts the next attempt of a finished run. None: not offered.
    """

    client: RequestClient
    feeder: Feeder[Any]
    read_only: bool = False
    is_recorded: bool = False
    adopter: Adopter | None = None
    continuer: Adopter | None = None


def word_of(kind: RequestKind) -> str:
    """The name of a request: ``stop now``."""
    return kind.value.replace("_", " ")
