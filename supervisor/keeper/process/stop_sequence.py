"""The stop sequence: ask, SIGTERM, grace, SIGKILL, bounded wait, survivors.

Each worker of torchrun is the leader of its own session, so killing torchrun's group with SIGKILL
leaves them alive (docs/DECISIONS.md): the last step goes to every recorded process, each verified by
pid and start time. It decides; `tick` says what to do and the keeper does it.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.run.events import StopStep, StopWhy

ASK_SHARE = 0.5
"""Part of the grace a trainer gets to act on its stop file before SIGTERM repeats the request."""

KILL_WAIT_S = 5.0
"""How long a SIGKILLed process may take: one in uninterruptible sleep (a hung GPU or NIC) never ends."""


@dataclass(slots=True)
class StopSequence:
    """One stop, from its intent to its end. Times are monotonic seconds.

    `can_ask`: the trainer is known to look at its stop file. `now`: skip to SIGKILL.
    """

    why: StopWhy
    by: str
    grace_s: float
    started: float
    can_ask: bool = False
    now: bool = False
    step: StopStep | None = None
    step_since: float = 0.0

    def tick(self, clock_s: float, *, alive: bool) -> StopStep | None:
        """The step to take now, or None. Call often while `alive`; never after."""
        if not alive:
            return None
        wanted = self._wanted(clock_s)
        if wanted is None or wanted is self.step:
            return None
        self.step, self.step_since = wanted, clock_s
        return wanted

    def hurry(self) -> None:
        """A second, more urgent request: SIGKILL at the next tick."""
        self.now = True

    def shorten(self, clock_s: float, grace_s: float) -> None:
        """SIGTERM was sent once more: SIGKILL follows after `grace_s` from now, or when it was due, if that is sooner."""
        due_s = min(self.started + self.grace_s, clock_s + grace_s)
        self.step, self.step_since = StopStep.SIGTERM, clock_s
        self.grace_s = due_s - self.started

    def _wanted(self, clock_s: float) -> StopStep | None:
        match self.step:
            case None:
                if self.now:
                    return StopStep.SIGKILL
                return StopStep.ASK if self.can_ask else StopStep.SIGTERM
            case StopStep.ASK:
                if self.now:
                    return StopStep.SIGKILL
                return StopStep.SIGTERM if clock_s - self.started >= self.grace_s * ASK_SHARE else None
            case StopStep.SIGTERM:
                return StopStep.SIGKILL if self.now or clock_s - self.started >= self.grace_s else None
            case StopStep.SIGKILL:
                return StopStep.SWEEP if clock_s - self.step_since >= 0.5 else None
            case StopStep.SWEEP:
                return StopStep.SURVIVORS if clock_s - self.step_since >= KILL_WAIT_S else None
            case StopStep.SURVIVORS:
                return None
