"""Keeps a launch that is due back until what must be shown first is shown, or the wait for it is over.

The looking is done beside the loop: a driver whose GPU has just failed, or a file server that is away, may not answer
at all, and a person's stop must be heard all the while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from supervisor.job.spec import JobSpec
from supervisor.keeper.base.background import Background
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.planning.preconditions import POLL_S, Missing, missing, squatters
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.paths import NodePaths
from supervisor.run.records import Precondition


class Way(StrEnum):
    """Whether the next launch may be made now."""

    WAIT = "wait"
    GO = "go"
    NEVER = "never"


LOOK_S = 0.5
"""How long the loop itself waits for an answer: NVML's and the disk's take milliseconds where all is well."""
CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a look gave, after which attempt. `others`: who else holds memory on the GPUs, in words."""

    attempt: int
    missing: Missing | None
    others: str


class ReadinessCheck:
    """Looked at by the keeper's one thread while a launch is due. Nothing it needs lives only here."""

    def __init__(
        self,
        job: JobSpec,
        node: NodePaths,
        env: Mapping[str, str],
        clock: Clock,
        emit: Callable[[ev.Event], None],
        look: Callable[..., Missing | None] = missing,
    ) -> None:
        self._job, self._node, self._env, self._clock, self._emit, self._look = (
            job,
            node,
            env,
            clock,
            emit,
            look,
        )
        self._looker: Background[_Seen] = Background("stoker-proofs")
        self._next_look = 0.0
        self.refusal = ""

    def way(self, state: st.RunState, backoff: st.Backoff) -> Way:
        """Look at most every `POLL_S` seconds. With NEVER `refusal` says why."""
        decision, attempt = backoff.decision, backoff.attempt
        if not decision.show_first:
            return Way.GO
        now = self._clock.mono()
        if now < self._next_look and not self._looker.busy:
            return Way.WAIT
        self._next_look = now + POLL_S
        waited_s = max(self._clock.wall() - backoff.until, 0.0)
        seen = self._see(decision.show_first, state, attempt)
        found = seen.missing
        if found is not None and waited_s < decision.wait_s:
            if state.waiting is None or state.waiting.precondition is not found.precondition:
                text = f"waiting, {decision.wait_s:.0f} s at most: {found.text}"
                self._emit(
                    ev.WaitingFor(
                        t=self._clock.wall(), attempt=attempt, precondition=found.precondition, text=text
                    )
                )
            return Way.WAIT
        self._next_look = 0.0
        if found is not None and found.fatal:
            self.refusal = f"waited {waited_s:.0f} s: {found.text}"
            return Way.NEVER
        text = ""
        if found is not None:
            text = f"launched after {waited_s:.0f} s all the same: {found.text}"
        if seen.others:
            text = "; ".join(filter(None, (text, f"others on the GPUs: {seen.others}")))
        self._emit(
            ev.LaunchCleared(t=self._clock.wall(), attempt=attempt, waited_s=round(waited_s, 3), text=text)
        )
        return Way.GO

    def close(self) -> None:
        """Wait a little for a look that is under way."""
        self._looker.close(CLOSE_S)

    def _see(self, wanted: tuple[Precondition, ...], state: st.RunState, attempt: int) -> _Seen:
        if not self._looker.busy:
            self._looker.start(lambda: self._answer(wanted, state, attempt))
        seen = self._looker.poll(LOOK_S)
        if seen is not None and seen.attempt == attempt:
            return seen
        if seen is not None or self._looker.busy:
            text = f"no answer yet to what was asked of {wanted[0].replace('_', ' ')}"
            return _Seen(attempt, Missing(wanted[0], text), "")
        # The look itself failed, which is logged: no reason to keep a run from going on.
        return _Seen(attempt, None, "")

    def _answer(self, wanted: tuple[Precondition, ...], state: st.RunState, attempt: int) -> _Seen:
        found = self._look(wanted, self._job, state, self._node, self._env)
        return _Seen(attempt, found, squatters(state) if Precondition.GPU_MEMORY in wanted else "")
