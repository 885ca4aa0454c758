"""Requests sent by this view, and their answers from the journal."""

from __future__ import annotations

import math
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
