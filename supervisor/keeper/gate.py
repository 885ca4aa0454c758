"""Keeps a launch that is due back until what must be shown first is shown, or the wait for it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from supervisor.job.spec import JobSpec
from supervisor.keeper.clock import Clock
from supervisor.keeper.proofs import POLL_S, Missing, missing, squatters
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.paths import NodePaths
from supervisor.run.records import Proof


class Way(StrEnum):
    """Whether the next launch may be made now."""

    WAIT = "wait"
    GO = "go"
    NEVER = "never"


class Gate:
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
        self._next_look = 0.0
        self.refusal = ""

    def way(self, state: st.RunState, backoff: st.Backoff) -> Way:
        """Look at most every `POLL_S` seconds. With NEVER `refusal` says why."""
        decision, attempt = backoff.decision, backoff.attempt
        if not decision.show_first:
            return Way.GO
        now = self._clock.mono()
        if now < self._next_look:
            return Way.WAIT
        self._next_look = now + POLL_S
        waited_s = max(self._clock.wall() - backoff.until, 0.0)
        found = self._look(decision.show_first, self._job, state, self._node, self._env)
        if found is not None and waited_s < decision.wait_s:
            if state.waiting is None or state.waiting.proof is not found.proof:
                text = f"waiting, {decision.wait_s:.0f} s at most: {found.text}"
                self._emit(ev.WaitingFor(t=self._clock.wall(), attempt=attempt, proof=found.proof, text=text))
            return Way.WAIT
        self._next_look = 0.0
        if found is not None and found.fatal:
            self.refusal = f"waited {waited_s:.0f} s: {found.text}"
            return Way.NEVER
        text = ""
        if found is not None:
            text = f"launched after {waited_s:.0f} s all the same: {found.text}"
        others = squatters(state) if Proof.GPU_MEMORY in decision.show_first else ""
        if others:
            text = "; ".join(filter(None, (text, f"others on the GPUs: {others}")))
        self._emit(
            ev.LaunchCleared(t=self._clock.wall(), attempt=attempt, waited_s=round(waited_s, 3), text=text)
        )
        return Way.GO
