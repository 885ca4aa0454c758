"""Who wants stacks and when they come: for the watch over a silence, and for a person who asks. Never on the loop.

py-spy may need seconds for a round and stops each process for a moment, so that one round is taken at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from supervisor.diagnosis.hang.stack_groups import StackRound
from supervisor.keeper.base.background import JOIN_S, Background, BackgroundTask
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.stalls.stack_rounds import Round, Targets, glance
from supervisor.run import events as ev

MOST_BLIND = 3
"""So many looks in a row without Python stacks show that there are none to be had."""


class StackBroker:
    """Takes rounds of one attempt after the other. Used by the keeper's one thread.

    Args:
        emit: journals a fact.
        targets: whom stacks are to be taken of now; None while no rank is known.
        take: takes one round; called in a thread.
        glance: looks at the ranks without stopping them; called in a thread.
    """

    _blind: int

    def __init__(
        self,
        emit: Callable[[ev.Event], None],
        clock: Clock,
        targets: Callable[[], Targets | None],
        take: Callable[[Targets, Clock], Round],
        glance: Callable[[Targets], StackRound | None] = glance,
    ) -> None:
        self._emit, self._clock, self._targets, self._take, self._glance = emit, clock, targets, take, glance
        self._one_at_a_time = threading.Lock()
        self._left: list[Background[Any]] = []
        self._asked: BackgroundTask[Round, str] | None = None
        self._begin(0)

    def begin(self, attempt: int) -> None:
        """Another attempt."""
        self.end()
        self._begin(attempt)

    def end(self) -> None:
        """The attempt has ended: what is being taken for the watch is left to finish by itself."""
        self._left = [work for work in (*self._left, self._taker, self._glancer) if work.working]

    def close(self) -> None:
        """Wait for what is still being taken."""
        self.end()
        for work in self._left:
            work.close()
        if self._asked is not None:
            self._asked.close(JOIN_S)

    @property
    def busy(self) -> bool:
        """Whether a round is being taken for the watch, or waits to be fetched."""
        return self._taker.busy

    @property
    def working(self) -> bool:
        """Whether stacks are being taken now, for whomever."""
        asked = self._asked is not None and self._asked.working
        return asked or any(work.working for work in (self._taker, self._glancer))

    def glance(self) -> None:
        """Begin a look at several ranks, where Python stacks can be taken of them."""
        targets = self._targets() if self._blind < MOST_BLIND and self._glancer.is_idle() else None
        if targets is not None and len(targets.ranks) > 1:
            self._glancer.start(lambda: [self._glance(targets)])

    def glanced(self) -> StackRound | None:
        """What the look gave, once. Where several gave nothing, there are no more of this attempt."""
        found = self._glancer.poll()
        if found is None:
            return None
        self._blind += 1
        if found[0] is not None:
            self._blind = 0
        return found[0]

    def start(self) -> bool:
        """Begin a round for the watch; False where there is nobody to look at, or one is under way."""
        targets = None if self._taker.busy else self._targets()
        if targets is None:
            return False
        self._taker.start(lambda: self._round(targets))
        return True

    def poll(self) -> Round | None:
        """The watch's round, once, when it is there."""
        taken = self._taker.poll()
        if taken is not None:
            self._journal(taken, self._attempt)
        return taken

    def ask(self) -> BackgroundTask[Round, str] | None:
        """A round for a person, whose answer is the artifact's name; None where there is nobody to look at.

        Who asks while one is being taken for somebody gets that one.
        """
        if self._asked is not None and self._asked.working:
            return self._asked
        targets, attempt = self._targets(), self._attempt
        if targets is None:
            return None

        def finish(taken: Round) -> str:
            self._journal(taken, attempt)
            if taken.artifact is None:
                raise OSError("the stacks could not be written: see keeper.log")
            return taken.artifact

        self._asked = BackgroundTask("stoker-stacks-asked", lambda: self._round(targets), finish)
        return self._asked

    def _begin(self, attempt: int) -> None:
        self._attempt = attempt
        self._taker: Background[Round] = Background("stoker-stacks")
        self._glancer: Background[list[StackRound | None]] = Background("stoker-glance")
        self._blind = 0

    def _round(self, targets: Targets) -> Round:
        # Two tracers cannot hold one process: whoever comes second waits, no longer than a round may take.
        if not self._one_at_a_time.acquire(timeout=JOIN_S):
            raise TimeoutError("stacks are still being taken: ask again")
        try:
            return self._take(targets, self._clock)
        finally:
            self._one_at_a_time.release()

    def _journal(self, taken: Round, attempt: int) -> None:
        self._emit(
            ev.StacksTaken(
                t=self._clock.wall(),
                attempt=attempt,
                text=taken.stacks.text[:400],
                odd=taken.odd,
                line_at=taken.line_at,
                artifact=taken.artifact,
                source=taken.source,
                collective=taken.collective,
                groups=taken.groups,
            )
        )
