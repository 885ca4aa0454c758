"""Writes observations to the run directory: samples to series, events to the journal at a limited rate.

Hundreds of steps may arrive per second. The journal gets at most one `Progress` a second, and fewer once it is
large. Each has the latest values, plus every loss minimum since the previous one. Phases, checkpoints and backlog
progress are limited likewise. An adopting keeper rereads the logs from the start. Samples recorded before are
recognized by their step and dropped here.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, assert_never

from msgspec.structs import replace

from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import (
    FactSeen,
    LinesSeen,
    Observation,
    RankGone,
    Reported,
    ReportedEvent,
    Sampled,
    StepHint,
    StepSeen,
)
from supervisor.keeper.recording.sample_steps import StepSense
from supervisor.run import events as ev
from supervisor.run.fold import MEASURED, merge_progress
from supervisor.run.series import JOB_KEY, METRICS, RANKS, Sample, SeriesReader, SeriesWriter
from supervisor.run.state import AttemptState, RunState
from supervisor.run.timeline import EVIDENCE_CHARS
from supervisor.sources.tail.tailer import Backlog
from supervisor.text.redact import redact_text

# If the loss falls with every step, each one is a minimum. With this many, a line of the journal stays below 1 KiB.
MAX_MINIMA = 32
# A loss that is nan from the first step on is reported after this many, because some scripts first print an empty mean.
NOT_FINITE_FROM_START = 3
PROGRESS_FIELDS = frozenset(MEASURED)
OF_STEP = frozenset({"step", "epoch_step", "epoch_steps"})
WHOLE = OF_STEP | {"total_steps"}
POSITION = WHOLE | {"epoch", "total_epochs"}
"""The values that show how far along the job is."""
PROGRESS_INTERVAL_S = 1.0
MAX_EVIDENCE = 20
MAX_ADVISORIES = 20
SPEAKER_WAIT_S = 2.0
MAX_EARLY = 1000
BEHIND_BYTES = 1 << 20
BEHIND_S = 1.0
"""Reading is behind if `BEHIND_BYTES` or more have been unread for at least this many seconds. Less is just fresh output."""
log = logging.getLogger("stoker.keeper")


@dataclass(slots=True)
class _Newest:
    """The latest event of a kind that is journaled at a limited rate."""

    waiting: ev.PhaseChanged | ev.CheckpointCommitted | None = None
    written: float = float("-inf")


@dataclass(slots=True)
class _Memory:
    """The recording state within one attempt.

    `pending` is progress not journaled yet, with the loss `minima` since the last report. `not_finite` and the three
    fields after it hold the first NaN or Inf loss, how many followed, and whether it and the next finite loss were
    journaled. `speaker` is the rank whose values count for the job, since `speaker_since`. `early` holds its samples
    while rank 0 may just be late, because the ranks' logs are not read at the same time. `phases_until` and
    `checkpoints_until` say how far an earlier keeper's journal goes.
    """

    attempt: int = 0
    pending: ev.Progress | None = None
    stepped: bool = False
    has_loss: bool = False
    least: float = math.inf
    least_step: int | None = None
    minima: deque[tuple[int | None, float]] = field(default_factory=lambda: deque(maxlen=MAX_MINIMA))
    last_loss: float | None = None
    not_finite: ev.LossNotFinite | None = None
    not_finite_count: int = 0
    told_not_finite: bool = False
    told_finite: bool = False
    last_progress: float = float("-inf")
    behind: Backlog | None = None
    behind_since: float | None = None
    reported_behind: bool = False
    next_backlog: float = float("-inf")
    phase: ev.Phase | None = None
    phases: _Newest = field(default_factory=_Newest)
    phases_until: float = float("-inf")
    saved: _Newest = field(default_factory=_Newest)
    checkpoints: set[tuple[int, bool]] = field(default_factory=set)
    checkpoints_until: int = -1
    wire: bool = False
    ready: bool = False
    speaker: int | None = None
    speaker_since: float = 0.0
    early: list[StepSeen] = field(default_factory=list)
    evidence_count: int = 0
    evidence: set[tuple[object, ...]] = field(default_factory=set)
    advised: set[str] = field(default_factory=set)
    steps: dict[tuple[str, str], float] = field(default_factory=dict)


class Recorder:
    """Writes what was observed in the current attempt. Each keeper has one, used only by its thread.

    `backlog()` returns how much of the attempt's logs has been read, or None if nothing is being read. `redact` removes secrets
    as the journal does, so evidence recorded by an earlier keeper is recognized by its text. `apart_s()` is the current minimum
    gap (seconds) between events of one kind. If `only_watches`, no decision needs steps, so a resumed job's first bar step
    counts.
    """

    def __init__(
        self,
        series: Path,
        emit: Callable[[ev.Event], None],
        clock: Clock,
        backlog: Callable[[], Backlog | None] = lambda: None,
        *,
        redact: Callable[[str], str] = redact_text,
        apart_s: Callable[[], float] = lambda: PROGRESS_INTERVAL_S,
        only_watches: bool = False,
    ) -> None:
        self._only_watches = only_watches
        self._apart_s, self._backlog, self._redact = apart_s, backlog, redact
        self._folder, self._series = series, SeriesWriter(series)
        self._unwritable: set[str] = set()
        self._emit, self._clock = emit, clock
        self._m = _Memory()
        self._sense = StepSense()

    def begin(self, attempt: int, *, adopted: RunState | None = None) -> None:
        """Begin a new attempt, or one `adopted` in the given state. Anything already on disk is not written again."""
        self._m = m = _Memory(attempt)
        self._sense.begin()
        view = adopted.attempt if adopted is not None else None
        if adopted is None or view is None or view.number != attempt:
            return
        m.ready, m.stepped = view.memory_base_bytes is not None, view.first_step is not None
        m.last_loss = view.last_loss
        m.told_not_finite, m.told_finite = view.not_finite is not None, view.finite_again is not None
        m.phase, m.phases_until = view.phase, view.phase_t if view.phase_t is not None else m.phases_until
        m.checkpoints = {(c.step, c.final) for c in adopted.checkpoints if c.attempt == attempt}
        m.checkpoints_until = max(view.checkpoint_steps, default=-1)
        m.evidence = {
            (moment.values.get("rank"), moment.values["failure"], moment.values["text"])
            for moment in adopted.timeline
            if moment.attempt == attempt and moment.kind == "evidence_seen"
        }
        m.advised = {advisory.code for advisory in adopted.advisories if advisory.attempt == attempt}
        self._recall(view)

    def record(self, seen: Observation) -> None:
        """Record one observation."""
        match seen:
            case StepSeen(from_telemetry=True):
                self._step(seen)
            case StepSeen():
                if "step" in seen.values or not seen.again:
                    self._steps(self._sense.take(seen, self._clock.mono()))
            case StepHint():
                self._steps(self._sense.hint(seen, self._clock.mono()))
            case Reported(event=event, rank=rank):
                self._report(event, is_leading=rank in {None, 0})
            case RankGone() | LinesSeen() | FactSeen():
                return  # handled by the attempt and by its health
            case Sampled():
                self._append(seen.stream, seen.t, seen.key, seen.values)
            case _ as unreachable:
                assert_never(unreachable)

    def _report(self, event: ReportedEvent, *, is_leading: bool) -> None:
        """Journal a reported event once. Phases, checkpoints and a trainer's start count only if `is_leading`: from rank 0 or an unknown rank."""
        m = self._m
        if not isinstance(event, ev.GpuFound):
            event = replace(event, attempt=m.attempt)
        match event:
            case ev.PhaseChanged():
                if is_leading and event.phase is not m.phase and event.t > m.phases_until:
                    m.phase, m.phases.waiting = event.phase, event
                    self._emit_newest(m.phases, self._apart_s())
            case ev.TrainerReady():
                if is_leading and not m.ready:
                    m.ready = True
                    self._emit(event)
            case ev.CheckpointCommitted():
                key = (event.step, event.final)
                known = key in m.checkpoints or event.step < m.checkpoints_until
                if is_leading and not known:
                    m.checkpoints.add(key)
                    m.saved.waiting = event
                    self._emit_newest(m.saved, 0.0 if event.final else self._apart_s())
            case ev.Advisory():
                if event.code not in m.advised and len(m.advised) < MAX_ADVISORIES:
                    m.advised.add(event.code)
                    self._emit(replace(event, text=self._redact(event.text)[:400]))
            case ev.EvidenceSeen():
                text = self._redact(event.text)[
                    :400
                ]  # truncate after redaction: half a token would not be recognized
                known_as = (event.rank, event.failure, text[:EVIDENCE_CHARS])
                if m.evidence_count < MAX_EVIDENCE and known_as not in m.evidence:
                    m.evidence_count += 1
                    m.evidence.add(known_as)
                    self._emit(replace(event, text=text))
            case ev.GpuFound():
                self._emit(event)
            case _ as unreachable:
                assert_never(unreachable)

    def tick(self) -> None:
        """Write whatever has waited long enough: samples waiting for a step, and events waiting for their turn."""
        m, now = self._m, self._clock.mono()
        for newest in (m.phases, m.saved):
            self._emit_newest(newest, self._apart_s())
        self._steps(self._sense.due(now))
        if m.early and self._has_waited():
            self._report_early()
        if now >= m.next_backlog:
            self._look_behind()
        self._emit_progress(self._apart_s())

    def expect_backlog(self) -> None:
        """Report right away that older logs are about to be read."""
        self._m.behind_since = float("-inf")
        self._look_behind()
        self._emit_progress(0.0)

    def flush(self) -> None:
        """Write everything that is still pending."""
        self._flush_progress()
        for newest in (self._m.phases, self._m.saved):
            self._emit_newest(newest, 0.0)

    def close(self) -> None:
        """Write everything that is pending and close the series."""
        self.flush()
        try:
            self._series.close()
        except OSError as error:
            log.error("series: %s", error.strerror)

    # -- events that are journaled at a limited rate -----------------------------------------------

    def _emit_newest(self, newest: _Newest, apart_s: float) -> None:
        event, now = newest.waiting, self._clock.mono()
        if event is not None and now - newest.written >= apart_s:
            newest.waiting, newest.written = None, now
            self._flush_progress()  # each event goes after the step that it followed
            self._emit(event)

    def _flush_progress(self) -> None:
        self._steps(self._sense.due(self._clock.mono(), final=True))
        self._report_early()
        self._look_behind()
        self._emit_progress(0.0)

    def _look_behind(self) -> None:
        m, now, backlog = self._m, self._clock.mono(), self._backlog()
        m.next_backlog = now + BEHIND_S
        if backlog is None or backlog.unread_bytes < BEHIND_BYTES:
            m.behind = m.behind_since = None
            return
        m.behind_since = now if m.behind_since is None else m.behind_since
        m.behind = backlog if now - m.behind_since >= BEHIND_S else None

    def _emit_progress(self, interval_s: float) -> None:
        m, now = self._m, self._clock.mono()
        pending, behind, since_s = m.pending, m.behind, now - m.last_progress
        if pending is None and (behind or m.reported_behind):
            pending = ev.Progress(t=self._clock.wall(), attempt=m.attempt)
        if pending is None or since_s < interval_s:
            return
        lag, size = (behind.unread_bytes, behind.size_bytes) if behind else (None, None)
        self._emit(replace(pending, minima=tuple(m.minima), lag_bytes=lag, log_bytes=size))
        m.minima.clear()
        m.pending, m.reported_behind, m.last_progress = None, behind is not None, now

    # -- steps ---------------------------------------------------------------------------------------

    def _steps(self, samples: Iterable[StepSeen]) -> None:
        for seen in samples:
            self._step(seen)

    def _step(self, seen: StepSeen) -> None:
        m = self._m
        resumes = self._only_watches and seen.values.get("step", 0) > 0
        if seen.begins and "loss" not in seen.values and not resumes:
            # The step where a bar starts was not made. In a resumed job it is not even where the job continues.
            values = {name: value for name, value in seen.values.items() if name != "step"}
            seen = dataclasses.replace(seen, values=values)
        if seen.measured and "step" in seen.values:
            seen = dataclasses.replace(seen, values={**seen.values, **seen.measured})
        m.wire = m.wire or seen.from_telemetry
        if m.wire and not seen.from_telemetry:
            return  # the trainer's telemetry has the exact values
        key = str(seen.rank) if seen.rank is not None else JOB_KEY
        if seen.rank is not None and self._is_new(RANKS, key, seen):
            self._append(RANKS, seen.t, key, seen.values)
        # One rank's values count for the job: rank 0 or a log without a rank once it has logged anything, else the first. In
        # foreign logs another rank may be the only one that prints metrics (the last stage of a pipeline prints the loss).
        if seen.rank in {None, 0}:
            m.speaker = 0
            m.early.clear()
            self._report_step(seen)
        elif not seen.from_telemetry:
            if m.speaker is None:
                m.speaker, m.speaker_since = seen.rank, self._clock.mono()
            if m.speaker == seen.rank and (m.early or not self._has_waited()):
                m.early.append(seen)
            elif m.speaker == seen.rank:
                self._report_step(seen)

    def _has_waited(self) -> bool:
        m = self._m
        return self._clock.mono() - m.speaker_since >= SPEAKER_WAIT_S or len(m.early) >= MAX_EARLY

    def _report_early(self) -> None:
        """Use another rank's samples, because rank 0 logged nothing in time."""
        early, self._m.early = self._m.early, []
        for seen in early:
            self._report_step(seen)

    def _report_step(self, seen: StepSeen) -> None:
        """Record a sample whose values count for the job."""
        if self._is_new(METRICS, JOB_KEY, seen):
            self._append(METRICS, seen.t, JOB_KEY, seen.values)
            self._note_least(seen.values.get("step"), seen.values.get("loss"))
            self._note_loss(seen)
            self._add_progress(seen)

    def _is_new(self, stream: str, key: str, seen: StepSeen) -> bool:
        step, known = seen.values.get("step"), self._m.steps.get((stream, key))
        return step is None or seen.joined or known is None or step > known

    def _note_least(self, step: float | None, loss: float | None) -> None:
        """Keep each new minimum of the loss. The journal has only the latest value, and a later attempt may repeat some of these steps.

        A loss without a step belongs to the latest step.
        """
        m = self._m
        at = m.least_step
        if step is not None and math.isfinite(step):
            at = int(step)
            m.least_step = at if m.least_step is None else max(m.least_step, at)
        if loss is not None and math.isfinite(loss) and loss < m.least:
            m.least = loss
            m.minima.append((at, loss))

    def _note_loss(self, seen: StepSeen) -> None:
        """Journal the attempt's first NaN or Inf loss and the first finite loss after it."""
        m, loss, step = self._m, seen.values.get("loss"), seen.values.get("step")
        if loss is None:
            return
        at = int(step) if step is not None and math.isfinite(step) else None
        if math.isfinite(loss):
            m.last_loss, m.not_finite, m.not_finite_count = loss, None, 0
            if m.told_not_finite and not m.told_finite:
                m.told_finite = True
                self._emit(ev.LossFinite(t=seen.t, attempt=m.attempt, loss=loss, step=at))
            return
        m.not_finite_count += 1
        m.not_finite = m.not_finite or ev.LossNotFinite(
            t=seen.t, attempt=m.attempt, value=str(loss), step=at, rank=seen.rank, last=m.last_loss
        )
        settled = m.last_loss is not None or m.not_finite_count >= NOT_FINITE_FROM_START
        if settled and not m.told_not_finite:
            m.told_not_finite = True
            self._emit_progress(0.0)  # that event has the last finite loss
            self._emit(m.not_finite)

    def _add_progress(self, seen: StepSeen) -> None:
        """Merge a sample into the pending progress. An attempt's first step shows where it continues, so it is journaled at once."""
        m = self._m
        m.has_loss = m.has_loss or "loss" in seen.values
        # Once the training has logged a loss, the counter of an evaluation does not show the training's position.
        aside = POSITION if seen.evaluates and m.has_loss and "loss" not in seen.values else frozenset()
        fields: dict[str, Any] = {}
        for name, value in seen.values.items():
            # A sample that waited for its step may be older than the newest one, so it shows no position.
            elsewhere = (seen.joined and name in OF_STEP) or (seen.headed and name == "epoch")
            if name in PROGRESS_FIELDS - aside and math.isfinite(value) and not elsewhere:
                fields[name] = int(value) if name in WHOLE else value
        is_first = "step" in fields and not m.stepped
        if fields:
            m.pending = merge_progress(m.pending, ev.Progress(t=seen.t, attempt=m.attempt, **fields))
            m.stepped = m.stepped or is_first
        self._emit_progress(0.0 if is_first else self._apart_s())

    def _recall(self, view: AttemptState) -> None:
        """Find out how far an earlier keeper wrote this attempt's samples, and journal the steps it did not get to."""
        m, told = self._m, view.last_step if view.last_step is not None else -math.inf
        untold: list[Sample] = []
        for stream in (METRICS, RANKS):
            reader = SeriesReader(self._folder, stream)
            for sample in chain.from_iterable(iter(reader.read, [])):
                place, step = (stream, sample.k), sample.v.get("step")
                if sample.a != view.number or step is None:
                    continue
                m.steps[place] = max(m.steps.get(place, -1.0), step)
                if place == (METRICS, JOB_KEY):  # the journal may lack the samples of the last second
                    self._note_least(step, sample.v.get("loss"))
                    if step > told:
                        untold = [*untold[:1], sample]  # the first one may be the attempt's first
        for sample in untold:
            values = {name: value for name, value in sample.v.items() if value is not None}
            # The sample's own time is in the series. An event must not be dated before the events above it.
            now = self._clock.wall()
            self._add_progress(StepSeen(t=now, rank=None, values=values, from_telemetry=False))

    def _append(self, stream: str, t: float, key: str, values: Mapping[str, float | None]) -> None:
        try:
            self._series.append(stream, t, key, self._m.attempt, values)
            self._unwritable.discard(stream)
        except OSError as error:
            if stream not in self._unwritable:  # logged once, as there may be hundreds a second
                log.error("series %s: samples are not written: %s", stream, error.strerror)
            self._unwritable.add(stream)
