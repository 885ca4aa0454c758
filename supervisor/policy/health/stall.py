"""Decides when a lack of progress is flagged as a stall (with stacks), and when a stall may be ended as a hang (`ending`).

There are two clocks. *Progress* is a completed step or epoch, a committed checkpoint, a change in the reported
phase, or an evaluation counter that goes up (``12/50``). *Output* is progress, or a line that is news, which a
heartbeat is not. A rank's own CPU time counts for neither clock, because a rank waiting in NCCL spins on a core.

- A stall is *flagged* after max(flag_s, 3 x pace) without progress. A line that is news restarts this timer, within
  limits. New or early text (such as evaluation output) does so until max(300 s, 10 x pace) after the last
  progress. Repeated text (an evaluation's lines, or a rank reporting that it is waiting) does so until 5 times the
  flagging time. Once a stall is flagged, only new text clears it. The first evaluation, save or
  compilation that a line announces has no known pace, so its limit is 60 s.
- A stall may be *ended* after max(act_s, 10 x pace, 3 x the longest silence that the run recovered from) without output.
- With both ``--end-hangs`` and ``--hang-timeout S``, it is ended after S seconds without progress, starting at the
  first completed step. During an evaluation, checkpoint or compilation (reported, announced by a line, or visible
  in the stacks) the limit is max(S, 3 x the longest such phase so far), or 600 s the first time.
  ``--start-timeout`` runs from the launch to the first step.
- With fewer than five gaps between steps there is no pace, and nothing is flagged. A false alarm is worse than a late one.

Each line is reduced to its *template*: its words without digits. A template becomes familiar in a log once it has
been printed both before and after a step. Its usual interval is the average time between two such lines. A familiar
template is news only if it comes more than twice as often as usual, or within half its interval after the last
step. One evaluation thus does not make the next one familiar.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from supervisor.job.spec import HangSettings
from supervisor.run.events import Phase

TEMPLATE_BYTES: Final = 300
MOST_TEMPLATES: Final = 4096
"""Maximum across all logs of an attempt. In prose, every line is a new template, so unfamiliar ones are dropped first."""
FASTER: Final = 2.0
SPARE: Final = 2.0
"""A familiar template may come `FASTER` times as often as usual, plus `SPARE` lines to allow for uneven batches."""

_DIGITS = b"0123456789"
# A date, a version or a path does not match.
_COUNTER = re.compile(rb"(?<![\d./-])(\d{1,9})(?:\s?/\s?| of )(\d{1,9})(?![\d./])")
# What a lower-case line announces, with a substring that is faster to find. A result or the end of a phase announces no phase.
_ANNOUNCED: Final = (
    (Phase.EVALUATING, b"val", re.compile(rb"\b(?:eval|evaluat(?:e|ing|ion)|validat(?:e|ing|ion))\b")),
    (Phase.CHECKPOINTING, b"ing", re.compile(rb"\b(?:saving|checkpointing)\b")),
    (Phase.COMPILING, b"compil", re.compile(rb"\b(?:re)?compil(?:e|ing|ation)\b")),
)
_RESULT = re.compile(rb"\d\.\d|\b(?:done|ended|finished|completed?|saved|took)\b")
# The same for a stack: functions of a script, and files of PyTorch that run only in one phase. A compiled model has frames of
# torch._dynamo in every step, and activation checkpointing has functions called checkpoint.
_STANDS_IN: Final = (
    (Phase.EVALUATING, re.compile(r"(?i)(?:\b|_)(?:eval|validat)\w*@")),
    (
        Phase.CHECKPOINTING,
        re.compile(r"(?i)(?:\b|_)(?:save|ckpt)\w*@|@\S*(?:torch/serialization|distributed/checkpoint|safetensors)"),
    ),
    (
        Phase.COMPILING,
        re.compile(
            r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph)"
            r"|torch/_inductor/(?:compile|graph|scheduler|codecache|async_compile|codegen)|triton/compiler"
        ),
    ),
)  # fmt: skip


class Printed(NamedTuple):
    """A log line. `template` is a hash of its words, `counter` is its ``12/50``, if any, and `phase` the phase it announces."""

    template: int
    counter: tuple[int, int] | None = None
    phase: Phase | None = None


class News(IntEnum):
    """What a line says about a run that is completing no steps, from weakest to strongest."""

    NONE = 0  # comes as often as while steps completed
    REPEATED = 1  # comes more often than while steps completed: lines of an evaluation, or a waiting rank
    EARLY = 2  # comes sooner after the last step than usual: mostly the next evaluation
    FRESH = 3  # new words
    COUNTED = 4  # a counter that went up


def printed(raw: bytes) -> Printed:
    """Reduce a line to its template, its counter and the phase it announces."""
    head = raw[:TEMPLATE_BYTES].lower()
    found = _COUNTER.search(head) if b"/" in head or b" of " in head else None
    counter = (int(found[1]), int(found[2])) if found is not None else None
    phase = next((phase for phase, part, rule in _ANNOUNCED if part in head and rule.search(head)), None)
    if phase is not None and counter is None and _RESULT.search(head):
        phase = None
    # A token without letters (a spinner, a part of a bar) or with a digit is not a word.
    words = [
        token
        for token in head.split()
        if token.translate(None, _DIGITS) == token and (token.upper() != token or not token.isascii())
    ]
    return Printed(hash(tuple(words)), counter, phase)


def phase_in_stack(mark: str) -> Phase | None:
    """Infer the phase from a stack (``function@file:line`` joined by bars), or return None if it is a step or unknown."""
    return next((phase for phase, stands_in in _STANDS_IN if stands_in.search(mark)), None)


class _Template:
    """A template's history in one log. Times are in seconds. `step` is how many steps had completed when its last line was printed.

    `gaps` and `gaps_s` are the number and total length of the gaps between its lines that contain a step. `count` is
    the number of lines since the latest of these gaps, which ended at `since`. `counted` is its counter's total and the
    highest value so far.
    """

    def __init__(self, now: float, step: int) -> None:
        self.last = self.since = now
        self.step, self.count = step, 1
        self.gaps, self.gaps_s = 0, 0.0
        self.counted = (0, 0)


class Output:
    """Tracks which log lines of one attempt are news."""

    def __init__(self) -> None:
        self._templates: dict[tuple[str, int], _Template] = {}
        self._steps, self._step_at = 0, 0.0

    def step(self, now: float) -> None:
        """Count a completed step."""
        self._steps, self._step_at = self._steps + 1, now

    def news(self, log: str, line: Printed, now: float) -> News:
        """Decide what kind of news a log line is, if any."""
        key = (log, line.template)
        known = self._templates.get(key)
        if known is None:
            if len(self._templates) >= MOST_TEMPLATES:
                familiar = {key: one for key, one in self._templates.items() if one.gaps}
                self._templates = familiar if len(familiar) < MOST_TEMPLATES else {}
            known = self._templates[key] = _Template(now, self._steps)
            self._went_up(known, line.counter)
            return News.FRESH
        if known.step != self._steps:
            known.gaps, known.gaps_s = known.gaps + 1, known.gaps_s + now - known.last
            known.step, known.since, known.count = self._steps, now, 0
        known.last = now
        known.count += 1
        went_up = self._went_up(known, line.counter)
        # If an adopting keeper reads a log again, its times are lost. The interval is then 0, and no line comes too often.
        usual_s = known.gaps_s / known.gaps if known.gaps else -1.0
        if (known.count - SPARE) * usual_s <= FASTER * (now - known.since) and known.gaps:
            is_early = known.count == 1 and usual_s > FASTER * (now - self._step_at)
            return News.EARLY if is_early else News.NONE
        return News.COUNTED if went_up else News.REPEATED

    @staticmethod
    def _went_up(known: _Template, counter: tuple[int, int] | None) -> bool:
        """Check whether a counter exceeds its previous high. A number that goes up and down is just a reading."""
        if counter is None:
            return False
        done, total = counter
        before = known.counted[1] if known.counted[0] == total and done > 1 else 0
        known.counted = (total, max(done, before))
        return before < done <= total


KEPT = 1024
MIN_GAPS = 5
"""Fewer gaps than this say little, because the first two or three are warm-up."""


class Stage(StrEnum):
    """What a pace measures: the gaps between steps, or the duration of a phase."""

    STEP = "step"  # from one step to the next
    START = "start"  # from the launch to the first step
    COMPILE = "compile"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"


class Paces:
    """Recent durations of each stage across all attempts, and the silences that ended on their own.

    Attributes:
        forgiven_s: per stage, the longest flagged silence that ended on its own; another of the same length is not flagged.
        returned_s: the longest silence, flagged or not, from which the run recovered.
    """

    def __init__(self) -> None:
        self._durations = {stage: deque[float](maxlen=KEPT) for stage in Stage}
        self._p99_s: dict[Stage, float | None] = {}
        self.forgiven_s: dict[Stage, float] = {}
        self.returned_s = 0.0

    def add(self, stage: Stage, duration_s: float) -> None:
        """Record how long a stage took."""
        if duration_s >= 0:
            self._durations[stage].append(duration_s)
            self._p99_s.pop(stage, None)

    def p99_s(self, stage: Stage) -> float | None:
        """Return the 99th percentile of the stage's durations, or None. Phases are rare, so one earlier phase is enough for a pace."""
        if stage not in self._p99_s:  # asked for at each line that is news
            known = sorted(self._durations[stage])
            enough = len(known) >= (MIN_GAPS if stage is Stage.STEP else 1)
            self._p99_s[stage] = known[math.ceil(0.99 * len(known) - 1e-9) - 1] if enough else None
        return self._p99_s[stage]


_PHASE_STAGES = {
    Phase.RENDEZVOUS: Stage.START,
    Phase.LOADING: Stage.START,
    Phase.COMPILING: Stage.COMPILE,
    Phase.EVALUATING: Stage.EVALUATION,
    Phase.CHECKPOINTING: Stage.CHECKPOINT,
}
AGAIN_FACTOR = 2.0
"""After a stall ends on its own, the next one in its stage is flagged only if it lasts this many times longer."""
PATIENT_FACTOR = 5.0
"""Stalls may last this many times longer in stages whose pace is the least reliable guide. A startup that loads a checkpoint
or compiles may take far longer than the previous one.
"""
_PATIENT = frozenset((Stage.START, Stage.COMPILE))
FRESH_S, FRESH_FACTOR = 300.0, 10.0
REPEATED_FACTOR = 5.0
FIRST_PHASE_S, PHASE_FACTOR = 600.0, 3.0
FIRST_FLAG_S = 60.0
MOVED_CPU_S = 0.5
MOVED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Threshold:
    """Limits on a stall, based on the 99th percentile `pace_s` (0 if set by the user). If `act_s` is None, it is never ended."""

    stage: Stage
    pace_s: float
    flag_s: float
    act_s: float | None


@dataclass(frozen=True, slots=True)
class Activity:
    """Running totals of activity in the ranks' helper processes and on disk. Only differences are meaningful.

    `child_cpu_s` is the CPU seconds used by the ranks' own children (data workers, compilers). `io_bytes` is the bytes
    that the ranks and those children read and wrote through system calls and sent over TCP.
    """

    child_cpu_s: float = 0.0
    io_bytes: int = 0


class StallWatch:
    """Follows one attempt's progress and output. Times are monotonic seconds on a single clock.

    `paces` outlives the attempt, so the next attempt starts with its paces and the silences that ended.

    Attributes:
        phase: the attempt's phase, as far as it has been reported.
        stepped: whether this attempt has completed a step.
        flagged: the threshold that was exceeded, for as long as the stall lasts.
        last_sign: when the timer for the flag was started. Stacks from before then belong to an earlier stall.
    """

    flagged: Threshold | None

    def __init__(self, paces: Paces, settings: HangSettings, *, started: float) -> None:
        self._paces = paces
        self._settings = settings
        self._output = Output()
        self._progress = self._news = self.last_sign = started
        self._last_step: float | None = None
        self.phase = Phase.RENDEZVOUS
        self._phase_since = started
        self._announced: tuple[Stage, float] | None = None
        self._launched = started
        self.stepped = False
        self._finished = False
        self.flagged = None
        self._over_s: float | None = None

    def step(self, now: float) -> None:
        """Count a step that a rank completed at `now`."""
        if not self.stepped:
            self._paces.add(Stage.START, now - self._launched)
            self.stepped, self._news = True, now  # the length of a start tells nothing about later silences
        elif self._last_step is not None and now > self._last_step:
            self._paces.add(Stage.STEP, now - self._last_step)
        if self._announced is not None:
            self._paces.add(self._announced[0], now - self._announced[1])
            self._announced = None
        self._output.step(now)
        # A step ends any phase, because not every trainer reports when a checkpoint is done.
        self.enter(Phase.STEPPING, now)
        self._last_step = now
        self.progress(now)

    def enter(self, phase: Phase, now: float) -> None:
        """Enter a newly reported phase and record how long the previous one took."""
        if phase is self.phase:
            return
        stage = _PHASE_STAGES.get(self.phase)
        if stage is not None and stage is not Stage.START:
            self._paces.add(stage, now - self._phase_since)
        self.phase, self._phase_since = phase, now
        self._last_step = None  # part of the gap to the next step belongs to another phase
        self.progress(now)

    def progress(self, now: float) -> None:
        """Count progress at `now`: a step, an epoch, a checkpoint, or part of an evaluation."""
        if now > self._progress:
            self._progress = now
            self._speak(now)
            self._hold(now)

    def announce(self, phase: Phase, since: float | None = None) -> None:
        """Note an unreported phase that a line or the stacks reveal (ends at the next step). `since` defaults to the last progress."""
        stage = _PHASE_STAGES.get(phase)
        if self.stepped and stage is not None and self._announced is None:
            self._announced = stage, since if since is not None else self._progress

    def printed(self, log: str, lines: Iterable[Printed], now: float) -> None:
        """Process lines that a rank wrote to its log."""
        for line in lines:
            if line.phase is not None:
                self.announce(line.phase, now)
            news = self._output.news(log, line, now)
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

    def recall(self, log: str, lines: Iterable[Printed]) -> None:
        """Learn lines that an earlier keeper saw. Their times and steps are unknown, so repeated lines count as familiar."""
        for line in lines:
            self._output.news(log, line, self._launched)
            self._output.step(self._launched)

    def finish(self, *, done: bool) -> None:
        """Set whether the last step is done. Whatever follows (a final save, an upload) has no pace."""
        self._finished = done

    def resume(self, last_sign: float) -> None:
        """Restore what an earlier keeper had observed of a job that has already completed a step."""
        self.phase, self.stepped = Phase.STEPPING, True
        self._progress = self._news = self.last_sign = last_sign

    def stalled_s(self, now: float) -> float:
        """Return the seconds since the last progress, or since launch while waiting for a first step that has a time limit."""
        waits = not self.stepped and self._settings.start_timeout_s > 0
        return max(0.0, now - (self._launched if waits else self._progress))

    def silent_s(self, now: float) -> float:
        """Return the seconds since the last progress or newsworthy output."""
        return max(0.0, now - self._news)

    def asked_s(self) -> float | None:
        """Return how long the user currently allows the run to go without progress, or None if the default rules apply."""
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
        """Return how long a stall may last in the current phase, or None if the pace is unknown."""
        settings = self._settings
        if not settings.enabled or self._finished:
            return None
        stage, asked_s = self._stage(), self.asked_s()
        pace = self._paces.p99_s(stage)
        if self._announced is not None and (known_s := self._paces.p99_s(self._announced[0])) is not None:
            stage, pace = self._announced[0], max(known_s, pace or 0.0)
        if pace is None:
            if asked_s is None and settings.act_given and settings.act_s > 0 and self.stepped:
                # A person's limit applies even without a known pace.
                return Threshold(stage, 0.0, settings.act_s, None)
            return Threshold(stage, 0.0, asked_s, asked_s) if asked_s is not None else None
        flag = max(settings.flag_s, settings.flag_factor * pace)
        if self._announced is not None and stage is not self._announced[0]:
            # The pace of an evaluation or a save is unknown before the first one.
            flag = max(flag, FIRST_FLAG_S)
        flag = max(flag, AGAIN_FACTOR * self._paces.forgiven_s.get(stage, 0.0))
        if asked_s is not None:
            return Threshold(stage, pace, min(flag, asked_s), asked_s)
        if settings.act_s <= 0:
            return Threshold(stage, pace, flag, None)
        act = max(settings.act_s, settings.act_factor * pace)
        act *= PATIENT_FACTOR if stage in _PATIENT else 1.0
        act = max(act, settings.return_factor * self._paces.returned_s)
        return Threshold(stage, pace, flag, max(act, flag))

    def flag(self, now: float) -> Threshold | None:
        """Return the threshold that the stall has just exceeded, or None. Each stall is reported only once."""
        if self.flagged is not None:
            return None
        limit = self.threshold()
        if limit is None or now - self.last_sign < limit.flag_s:
            return None
        self.flagged = limit
        return limit

    def ended_s(self) -> float | None:
        """Return the duration of a flagged stall that has ended on its own, or None. It is returned only once."""
        over, self._over_s = self._over_s, None
        return over

    def _stage(self) -> Stage:
        stage = _PHASE_STAGES.get(self.phase, Stage.STEP)
        # The first step compiles, fills caches and waits for the slowest rank, so it belongs to the start.
        return stage if self.stepped or stage is Stage.COMPILE else Stage.START

    def _speak(self, now: float) -> None:
        """Note output that is news. The run has recovered from a silence, so later silences may last as long as that one."""
        if now > self._news:
            if self.stepped:
                self._paces.returned_s = max(self._paces.returned_s, now - self._news)
            self._news = now

    def _hold(self, now: float) -> None:
        """Restart the timer for the flag, and clear a flagged stall."""
        waits = not self.stepped and self._settings.start_timeout_s > 0
        if now <= self.last_sign or waits:
            return
        if self.flagged is not None:
            self._over_s = now - self.last_sign
            forgiven, stage = self._paces.forgiven_s, self.flagged.stage
            forgiven[stage] = max(forgiven.get(stage, 0.0), self._over_s)
            self.flagged = None
        self.last_sign = now


def moved(before: Activity, after: Activity) -> bool:
    """Check for child CPU time or I/O between two rounds, as from loading data, compiling kernels or saving a checkpoint.

    A rank's own CPU time does not count (see above), nor do small amounts. An idle rank writes a few kilobytes (NCCL and
    store heartbeats), and a waiting data worker uses a few milliseconds.
    """
    return (
        after.child_cpu_s - before.child_cpu_s >= MOVED_CPU_S
        or after.io_bytes - before.io_bytes >= MOVED_BYTES
    )
