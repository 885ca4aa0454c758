"""When silence is a stall (said, with stacks), and how long it must last at least before it may be ended as a hang (`ending`).

Two thresholds: a stall is *flagged* at max(flag_s, 3 x pace), and may be *ended* from max(act_s, 10 x pace, 3 x the longest
silence that the run came back from) on. A false alarm is an act, and worse than a late one: where no pace is known, there is
neither.

What counts as a sign of life: a step of any rank, a line in any rank's log, a change of phase, a committed checkpoint.
What does not: CPU time of a rank itself. A rank that waits in NCCL spins on a core, as does one in an endless loop; one
that reads from a slow disk uses none.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.job.spec import HangSettings
from supervisor.policy.health.pace import Paces, Stage
from supervisor.run.events import Phase

_PHASE_STAGES = {
    Phase.RENDEZVOUS: Stage.START,
    Phase.LOADING: Stage.START,
    Phase.COMPILING: Stage.COMPILE,
    Phase.EVALUATING: Stage.EVALUATION,
    Phase.CHECKPOINTING: Stage.CHECKPOINT,
}
AGAIN_FACTOR = 2.0
"""After a stall that ended by itself, only one this much longer is flagged in the same stage."""
PATIENT_FACTOR = 5.0
"""Ending waits this much longer where a pace says least: a silent evaluation writes no line for minutes, and a start that
loads a checkpoint or compiles may take far longer than the one before."""
_PATIENT = frozenset((Stage.LOG, Stage.START, Stage.COMPILE))
LINE_GAP_S = 1.0
MOVED_CPU_S = 0.5
MOVED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Threshold:
    """How long a silence may last now. `pace_s`: the 99th percentile behind it. `act_s` None: never ended."""

    stage: Stage
    pace_s: float
    flag_s: float
    act_s: float | None


@dataclass(frozen=True, slots=True)
class Activity:
    """What the ranks' helper processes and disks did up to a moment: only differences mean anything.

    `child_cpu_s`: CPU seconds of the ranks' own children (data workers, compilers). `io_bytes`: what the ranks and
    those children read and wrote by system calls.
    """

    child_cpu_s: float = 0.0
    io_bytes: int = 0


class StallWatch:
    """Follows one attempt's signs of life. Times are monotonic seconds of one clock.

    `paces` outlives the attempt: the next one starts with what this one taught, also of silences that ended.
    """

    def __init__(self, paces: Paces, settings: HangSettings, *, started: float) -> None:
        self._paces = paces
        self._settings = settings
        self._last_sign = started
        self._last_step: float | None = None
        self._last_line: float | None = None
        self._phase = Phase.RENDEZVOUS
        self._phase_since = started
        self._launched = started
        self._stepped = False
        self._finished = False
        self._flagged: Threshold | None = None
        self._over_s: float | None = None

    @property
    def last_sign(self) -> float:
        """When anything last moved."""
        return self._last_sign

    @property
    def phase(self) -> Phase:
        """What the attempt is doing, as far as it tells."""
        return self._phase

    @property
    def stepped(self) -> bool:
        """Whether a step of this attempt is done."""
        return self._stepped

    @property
    def flagged(self) -> Threshold | None:
        """The threshold that was passed, while the stall lasts."""
        return self._flagged

    def step(self, now: float) -> None:
        """A step of some rank was seen, done at `now`."""
        if not self._stepped:
            self._paces.add(Stage.START, now - self._launched)
        elif self._last_step is not None and now > self._last_step:
            self._paces.add(Stage.STEP, now - self._last_step)
        self._last_step = now
        if self._phase is not Phase.STEPPING:
            # A step is a step, whatever was said before: not every trainer says when a checkpoint is done.
            self.enter(Phase.STEPPING, now)
            self._last_step = now
        self._move(now)
        self._stepped = True

    def line(self, now: float) -> None:
        """Some rank wrote to its log."""
        if self._last_line is None:
            self._last_line = now
        elif now - self._last_line >= LINE_GAP_S:  # a burst of lines counts once
            self._paces.add(Stage.LOG, now - self._last_line)
            self._last_line = now
        self._move(now)

    def enter(self, phase: Phase, now: float) -> None:
        """The attempt says that it does something else: what it did until now took so long."""
        if phase is not self._phase:
            stage = _PHASE_STAGES.get(self._phase)
            if stage is not None and stage is not Stage.START:
                self._paces.add(stage, now - self._phase_since)
            self._phase, self._phase_since = phase, now
            self._last_step = None  # the gap to the next step is partly another phase's
        self._move(now)

    def sign(self, now: float) -> None:
        """Something else moved: a checkpoint was committed, another rank came."""
        self._move(now)

    def finish(self, *, done: bool) -> None:
        """Whether the last step is done: what comes then (a last save, an upload) has no pace."""
        self._finished = done

    def resume(self, phase: Phase | None, last_sign: float) -> None:
        """A new keeper took over: what the old one had seen of a training that had stepped already."""
        self._phase = phase if phase is not None else Phase.STEPPING
        self._stepped = True
        self._last_sign = last_sign

    def silent_s(self, now: float) -> float:
        """For how long nothing has moved."""
        return max(0.0, now - self._last_sign)

    def threshold(self) -> Threshold | None:
        """How long a silence may last in what the attempt does now; None: unknown, so for ever."""
        settings = self._settings
        if not settings.enabled or self._finished:
            return None
        stage = self._stage()
        pace = self._paces.p99_s(stage)
        if stage is Stage.STEP and pace is None:
            stage, pace = Stage.LOG, self._paces.p99_s(Stage.LOG)
        if pace is None:
            return None
        flag = max(settings.flag_s, settings.flag_factor * pace)
        flag = max(flag, AGAIN_FACTOR * self._paces.forgiven_s(stage))
        if settings.act_s <= 0:
            return Threshold(stage, pace, flag, None)
        act = max(settings.act_s, settings.act_factor * pace)
        act *= PATIENT_FACTOR if stage in _PATIENT else 1.0
        act = max(act, settings.return_factor * self._paces.returned_s)
        return Threshold(stage, pace, flag, max(act, flag))

    def flag(self, now: float) -> Threshold | None:
        """The threshold that the silence has just passed; None before, and after it was told once."""
        if self._flagged is not None:
            return None
        limit = self.threshold()
        if limit is None or self.silent_s(now) < limit.flag_s:
            return None
        self._flagged = limit
        return limit

    def ended_s(self) -> float | None:
        """How long a flagged stall lasted that has ended by itself; told once."""
        over, self._over_s = self._over_s, None
        return over

    def _stage(self) -> Stage:
        stage = _PHASE_STAGES.get(self._phase, Stage.STEP)
        # The first step compiles, fills caches, waits for the slowest rank: it belongs to the start.
        return stage if self._stepped or stage is Stage.COMPILE else Stage.START

    def _move(self, now: float) -> None:
        if now <= self._last_sign:
            return
        if (
            self._stepped
        ):  # before the first step nothing is ended: how long that takes says nothing of later silences
            self._paces.returned(now - self._last_sign)
        if self._flagged is not None:
            self._over_s = now - self._last_sign
            self._paces.forgive(self._flagged.stage, self._over_s)
            self._flagged = None
        self._last_sign = now


def moved(before: Activity, after: Activity) -> bool:
    """Whether helpers or disks worked between two rounds: data being prepared, kernels compiled, a checkpoint written.

    A rank's own CPU time is left out (see above). Idle ranks write some kilobytes (heartbeats of NCCL and of the
    store), a data worker that waits uses a few milliseconds.
    """
    return (
        after.child_cpu_s - before.child_cpu_s >= MOVED_CPU_S
        or after.io_bytes - before.io_bytes >= MOVED_BYTES
    )
