"""Requests sent by this view, and their answers from the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.run.control import RequestArgs
from supervisor.run.events import RequestKind
from supervisor.run.ownership import NotRequested, Offer, ask
from supervisor.run.paths import NodePaths, RunPaths
from supervisor.run.state import RunState

# A keeper answers within a second, for a stop once it has begun. After this long, report that it did not.
PATIENCE_S = 8.0
WORDS = {
    RequestKind.STOP: "stop",
    RequestKind.STOP_NOW: "stop now",
    RequestKind.RESTART: "restart",
    RequestKind.RESTART_WITH: "restart with a change",
    RequestKind.START_NOW: "start now",
    RequestKind.HOLD: "hold the restart",
    RequestKind.STACKS: "stacks",
    RequestKind.PROFILE: "profile",
    RequestKind.KEEP_WAITING: "keep waiting",
    RequestKind.ANSWER: "answer",
    RequestKind.NOTE: "note",
}
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


@dataclass(slots=True)
class _Pending:
    kind: RequestKind
    sent_t: float
    reported_late: bool = False


class RequestClient:
    """Sends requests and watches for their answers. `put` runs in the reading thread, the rest on screen."""

    def __init__(self, run: RunPaths) -> None:
        self.run = run
        self._pending: dict[str, _Pending] = {}

    @property
    def node(self) -> NodePaths:
        """The folder that lists the run's logs."""
        return self.run.node()

    def sender(
        self,
        kind: RequestKind,
        attempt: int | None,
        args: RequestArgs | None,
        now: float,
        report: Callable[[Answer], object],
    ) -> Callable[[], None]:
        """A job that sends the request and reports the result."""

        def put() -> None:
            try:
                request_id = ask(self.run, kind, if_attempt=attempt, args=args)
            except NotRequested as why:
                report(Answer(f"{WORDS[kind]}: not sent: {why}", False))
                return
            except OSError as error:
                report(Answer(f"{WORDS[kind]}: not sent: {error.strerror}: {self.run.control}", False))
                return
            self._pending[request_id] = _Pending(kind, now)
            report(Answer(f"{WORDS[kind]}: asked the supervisor process", None))

        return put

    def answers(self, state: RunState, now: float) -> list[Answer]:
        """The results of requests since the last call."""
        found: list[Answer] = []
        for request_id, pending in list(self._pending.items()):
            text = state.answered.get(request_id)
            word = WORDS[pending.kind]
            if text is not None:
                self._pending.pop(request_id, None)
                done = "done" if pending.kind in _DONE else "accepted"
                more = " · p shows them" if pending.kind is RequestKind.STACKS else ""
                found.append(
                    Answer(f"{word}: {done}{more}", True)
                    if text == "done"
                    else Answer(f"{word} refused: {text}", False)
                )
            elif not pending.reported_late and now - pending.sent_t > PATIENCE_S:
                pending.reported_late = True
                found.append(
                    Answer(
                        f"{word}: no answer yet; is the supervisor process alive? its log is keeper.log",
                        False,
                    )
                )
        return found
