"""When missing progress is a stall (reported, with stacks), and how long it must last at least before it may be ended as a hang (`ending`).

Two clocks. *Progress* is a completed step or epoch, a committed checkpoint, a change of the reported phase, an evaluation's own
counter that goes up (``12/50``). *Output* is progress, or a line that is news by `output`: not a heartbeat. What counts for
neither: CPU time of a rank itself. A rank that waits in NCCL spins on a core, as does one in an endless loop; one that reads from
a slow disk uses none.

- A stall is *flagged* after max(flag_s, 3 x pace) without progress. Output that is news begins that time anew, but not for ever:
  words that were never printed before, or come early (an evaluation's prose), until max(300 s, 10 x pace) after the last progress;
  words that repeat since then (an evaluation's lines, or a rank that reports that it waits) until 5 times the flag's own time.
  Of these only words that were never printed before end a stall that is flagged already.
- It may be *ended* after max(act_s, 10 x pace, 3 x the longest silence that the run came back from) without output.
- Where a person gave both ``--end-hangs`` and ``--hang-timeout S``, it is ended after S seconds without progress, from the first
  completed step on. In an evaluation, a checkpoint or a compilation, reported, announced by a line or seen in the stacks, that is
  max(S, 3 x the longest of these so far), and 600 s the first time. ``--start-timeout`` counts from the launch to the first step.
- A run of which no five steps can be read has no progress clock: there every line counts for both, by the pace of the lines.

A false alarm is an act, and worse than a late one: where no pace is known, there is neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.job.spec import HangSettings
from supervisor.policy.health.output import News, Output, Printed
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
FRESH_S, FRESH_FACTOR = 300.0, 10.0
REPEATED_FACTOR = 5.0
FIRST_PHASE_S, PHASE_FACTOR = 600.0, 3.0
MOVED_CPU_S = 0.5
MOVED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Threshold:
    """How long a stall may last now. `pace_s`: the 99th percentile behind it, 0 where a person's limit alone is. `act_s` None: never ended."""

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
    """Follows one attempt's progress and output. Times are monotonic seconds of one clock.

    `paces` outlives the attempt: the next one starts with what this one taught, also of silences that ended.

    Attributes:
        phase: what the attempt is doing, as far as it tells.
        stepped: a step of this attempt is done.
        flagged: the threshold that was passed, while the stall lasts.
        last_sign: since when the time to the flag runs; a look from before it is of an earlier stall.
    """

    flagged: Threshold | None

    def __init__(self, paces: Paces, settings: HangSettings, *, started: float) -> None:
        self._paces = paces
        self._settings = settings
        self._output = Output()
        self._progress = self._news = self.last_sign = started
        self._last_step: float | None = None
        self._last_line: float | None = None
        self.phase = Phase.RENDEZVOUS
        self._phase_since = started
        self._announced: tuple[Stage, float] | None = None
        self._launched = started
        self.stepped = False
        self._finished = False
        self.flagged = None
        self._over_s: float | None = None

    def step(self, now: float) -> None:
        """A step of some rank was seen, done at `now`."""
        if not self.stepped:
            self._paces.add(Stage.START, now - self._launched)
            self.stepped, self._news = True, now  # how long a start took says nothing of later silences
        elif self._last_step is not None and now > self._last_step:
            self._paces.add(Stage.STEP, now - self._last_step)
        if self._announced is not None:
            self._paces.add(self._announced[0], now - self._announced[1])
            self._announced = None
        self._output.step(now)
        # A step is a step, whatever was said before: not every trainer says when a checkpoint is done.
        self.enter(Phase.STEPPING, now)
        self._last_step = now
        self.progress(now)

    def enter(self, phase: Phase, now: float) -> None:
        """The attempt reports that it does something else: what it did until now took so long."""
        if phase is self.phase:
            return
        stage = _PHASE_STAGES.get(self.phase)
        if stage is not None and stage is not Stage.START:
            self._paces.add(stage, now - self._phase_since)
        self.phase, self._phase_since = phase, now
        self._last_step = None  # the gap to the next step is partly another phase's
        self.progress(now)

    def progress(self, now: float) -> None:
        """Something was done: a step, an epoch, a checkpoint, a part of an evaluation."""
        if now > self._progress:
            self._progress = now
            self._speak(now)
            self._hold(now)

    def announce(self, phase: Phase, since: float | None = None) -> None:
        """A line, or the stacks, show what no phase was reported for; it lasts until the next step. `since` None: the last progress."""
        stage = _PHASE_STAGES.get(phase)
        if self.stepped and stage is not None and self._announced is None:
            self._announced = stage, since if since is not None else self._progress

    def printed(self, log: str, lines: Iterable[Printed], now: float) -> None:
        """Some rank wrote these lines to its log."""
        self.line(now)
        for line in lines:
            self._hear(line, self._output.news(log, line, now), now)

    def recall(self, log: str, lines: Iterable[Printed]) -> None:
        """An earlier keeper saw them. When is not known, nor which steps lay between: what comes again is familiar."""
        for line in lines:
            self._output.news(log, line, self._launched)
            self._output.step(self._launched)

    def line(self, now: float) -> None:
        """Some rank wrote to its log."""
        if self._last_line is None:
            self._last_line = now
        elif now - self._last_line >= LINE_GAP_S:  # a burst of lines counts once
            self._paces.add(Stage.LOG, now - self._last_line)
            self._last_line = now
        if self._counts_lines:
            self._speak(now)
            self._hold(now)

    def finish(self, *, done: bool) -> None:
        """Whether the last step is done: what comes then (a last save, an upload) has no pace."""
        self._finished = done

    def resume(self, phase: Phase | None, last_sign: float) -> None:
        """A new keeper took over: what the old one had seen of a training that had stepped already."""
        self.phase = phase if phase is not None else Phase.STEPPING
        self.stepped = True
        self._progress = self._news = self.last_sign = last_sign

    def stalled_s(self, now: float) -> float:
        """For how long there was no progress, or no line where lines are all that is known; before the first step, where that has a limit, since the launch."""
        if self._counts_lines:
            return self.silent_s(now)
        waits = not self.stepped and self._settings.start_timeout_s > 0
        return max(0.0, now - (self._launched if waits else self._progress))

    def silent_s(self, now: float) -> float:
        """For how long there was neither progress nor output that is news."""
        return max(0.0, now - self._news)

    def asked_s(self) -> float | None:
        """How long a person lets the attempt make no progress now; None: the default rules decide."""
        settings = self._settings
        if not self.stepped:
            return settings.start_timeout_s or None
        if not settings.ends_by_progress:
            return None
        stage = self._announced[0] if self._announced is not None else self._stage()
        if stage is Stage.STEP:
            return settings.act_s
        longest_s = self._paces.p99_s(stage)
        return max(settings.act_s, FIRST_PHASE_S if longest_s is None else PHASE_FACTOR * longest_s)

    def threshold(self) -> Threshold | None:
        """How long a stall may last in what the attempt does now; None: unknown, so for ever."""
        settings = self._settings
        if not settings.enabled or self._finished:
            return None
        stage, asked_s = Stage.LOG if self._counts_lines else self._stage(), self.asked_s()
        pace = self._paces.p99_s(stage)
        if self._announced is not None and (known_s := self._paces.p99_s(self._announced[0])) is not None:
            stage, pace = self._announced[0], max(known_s, pace or 0.0)
        if pace is None:
            return Threshold(stage, 0.0, asked_s, asked_s) if asked_s is not None else None
        flag = max(settings.flag_s, settings.flag_factor * pace)
        flag = max(flag, AGAIN_FACTOR * self._paces.forgiven_s(stage))
        if asked_s is not None:
            return Threshold(stage, pace, min(flag, asked_s), asked_s)
        if settings.act_s <= 0:
            return Threshold(stage, pace, flag, None)
        act = max(settings.act_s, settings.act_factor * pace)
        act *= PATIENT_FACTOR if stage in _PATIENT else 1.0
        act = max(act, settings.return_factor * self._paces.returned_s)
        return Threshold(stage, pace, flag, max(act, flag))

    def flag(self, now: float) -> Threshold | None:
        """The threshold that the stall has just passed; None before, and after it was told once."""
        if self.flagged is not None:
            return None
        limit = self.threshold()
        if limit is None or now - self.last_sign < limit.flag_s:
            return None
        self.flagged = limit
        return limit

    def ended_s(self) -> float | None:
        """How long a flagged stall lasted that has ended by itself; told once."""
        over, self._over_s = self._over_s, None
        return over

    @property
    def _counts_lines(self) -> bool:
        """Whether too few steps can be read for a pace, and no person gave a limit for them."""
        is_stepping = self.stepped and self.phase not in _PHASE_STAGES
        return is_stepping and self.asked_s() is None and self._paces.p99_s(Stage.STEP) is None

    def _stage(self) -> Stage:
        stage = _PHASE_STAGES.get(self.phase, Stage.STEP)
        # The first step compiles, fills caches, waits for the slowest rank: it belongs to the start.
        return stage if self.stepped or stage is Stage.COMPILE else Stage.START

    def _hear(self, line: Printed, news: News, now: float) -> None:
        if line.phase is not None:
            self.announce(line.phase, now)
        if news is News.COUNTED:
            self.progress(now)
        elif news is not News.NONE:
            self._speak(now)
            limit = self.threshold()
            if limit is None:
                longest_s = now
            elif news is News.REPEATED:
                longest_s = REPEATED_FACTOR * limit.flag_s
            else:
                longest_s = max(FRESH_S, FRESH_FACTOR * limit.pace_s)
            if now - self._progress <= longest_s and (self.flagged is None or news is News.FRESH):
                self._hold(now)

    def _speak(self, now: float) -> None:
        """Output that is news: the run came back from a silence, after which later ones may be longer."""
        if now > self._news:
            if self.stepped:
                self._paces.returned(now - self._news)
            self._news = now

    def _hold(self, now: float) -> None:
        """The flag's clock begins anew, and a flagged stall is over."""
        waits = not self.stepped and self._settings.start_timeout_s > 0
        if now <= self.last_sign or waits:
            return
        if self.flagged is not None:
            self._over_s = now - self.last_sign
            self._paces.forgive(self.flagged.stage, self._over_s)
            self.flagged = None
        self.last_sign = now


def moved(before: Activity, after: Activity) -> bool:
    """Whether helpers or disks worked between two rounds: data being prepared, kernels compiled, a checkpoint written.

    A rank's own CPU time is left out (see above). Idle ranks write some kilobytes (heartbeats of NCCL and of the
    store), a data worker that waits uses a few milliseconds.
    """
    return (
        after.child_cpu_s - before.child_cpu_s >= MOVED_CPU_S
        or after.io_bytes - before.io_bytes >= MOVED_BYTES
    )
