"""Where the nodes of an attempt meet, and what a node reports while its ranks have not come that far: else there is only silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from supervisor.job.launch.plan import ENDPOINT_PORT, MASTER_PORT, endpoint_of
from supervisor.job.spec import JobSpec
from supervisor.keeper.base.background import Background
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.preflight.connection import CONNECT_S, Failed, Way, why_not
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.nodes import Order

WAIT_S: Final = 10.0
"""torchrun needs so long on a busy machine before node 0 listens, and a node finds it."""
EVERY_S: Final = 5.0
CODE: Final = "rendezvous"


class RendezvousWatch:
    """Tries the meeting point while an attempt runs that has no rank here yet, and journals why it cannot be reached: each reason once.

    A refusal counts where it is the second in a row: node 0 may be about to listen, or to end.
    """

    def __init__(self, clock: Clock, emit: Callable[[ev.Event], None]) -> None:
        self._clock, self._emit = clock, emit
        self._probe: Background[Failed | None] = Background("stoker-rendezvous")
        self._due = float("-inf")
        self._attempt = 0
        self._said: set[Way] = set()
        self._refused = False

    def look(self, view: st.AttemptState | None, where: tuple[str, int] | None) -> None:
        """Call often. `where`: see `meeting_point`."""
        if (
            view is None
            or where is None
            or view.started_t is None
            or any(rank.pid for rank in view.ranks.values())
        ):
            return
        now = self._clock.mono()
        if view.number != self._attempt:
            self._attempt, self._due, self._said, self._refused = view.number, now + WAIT_S, set(), False
        if self._probe.busy:
            if self._probe.working:
                return
            found, before = self._probe.poll(), self._refused
            self._refused = found is not None and found.way is Way.REFUSED
            if self._refused and not before:
                return
            if found is not None and found.way not in self._said:
                self._said.add(found.way)
                self._say(view.number, found)
        elif now >= self._due:
            self._due = now + EVERY_S
            self._probe.start(lambda: why_not(*where))

    def close(self) -> None:
        """Wait for a probe that is under way."""
        self._probe.close(CONNECT_S)

    def _say(self, number: int, failed: Failed) -> None:
        text = f"waiting for the rendezvous: {failed.what}; {failed.fix}"
        code = f"{CODE}_{number}_{failed.way.value}"
        self._emit(ev.Advisory(t=self._clock.wall(), attempt=number, code=code, text=text))


def meeting_point(job: JobSpec, order: Order | None) -> tuple[str, int] | None:
    """Where torchrun's store listens on node 0; None where that is not known."""
    host, port = endpoint_of(job)
    if host:
        return host, port or ENDPOINT_PORT
    if job.master_addr is None:
        return None
    launch = order.launch if order is not None else None
    port_given = launch.master_port if launch is not None else None
    return job.master_addr, port_given or job.master_port or MASTER_PORT
