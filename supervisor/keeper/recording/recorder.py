"""Writes observations to the run directory: samples to series, events to the journal at a limited rate.

Hundreds of steps may arrive per second. The journal gets at most one `Progress` a second, and fewer once it is large: always the newest,
with every minimum of the loss since the previous one. Phases and checkpoints are limited likewise. While the reading of logs is behind,
it is reported at least every 10 s. An adopting keeper reads the logs again from their start. Samples that were recorded before are
recognized by their step, or by where their line stands, and dropped here.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, assert_never

from msgspec.structs import replace

from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import (
    AdviceSeen,
    CheckpointSeen,
    EvidenceLine,
    FactSeen,
    GpuSeen,
    LinesSeen,
    Observation,
    PhaseSeen,
    RankGone,
    ReadySeen,
    Sampled,
    StepHint,
    StepSeen,
)
from supervisor.keeper.recording.sample_steps import StepSense
from supervisor.run import events as ev
from supervisor.run.fold import MEASURED, merge_progress
from supervisor.run.series import JOB_KEY, METRICS, RANKS, Sample, SeriesReader, SeriesWriter
from supervisor.run.state import AttemptState, MomentKind, RunState
from supervisor.run.timeline import EVIDENCE_CHARS
from supervisor.sources.tail.tailer import Backlog
from supervisor.text.redact import redact_text

Minimum: TypeAlias = tuple[int | None, float]
"""A step (None before any was named) and its loss."""

# A loss that falls with every step makes each one a minimum; with this many, a line of the journal stays below 1 KiB.
MAX_MINIMA = 32
# A loss that is nan from the first step on is reported after this many, because some scripts first print an empty mean.
NOT_FINITE_FROM_START = 3
PROGRESS_FIELDS = frozenset(MEASURED)
OF_STEP = frozenset({"step", "epoch_step", "epoch_steps"})
WHOLE = OF_STEP | {"total_steps"}
POSITION = WHOLE | {"epoch", "total_epochs"}
"""The values that say how far the job is."""


class RunningMinima:
    """Every new minimum of the loss in one attempt, which the journal's newest value misses at many steps a second.

    All of them are kept, because a later attempt may repeat some of these steps, and the remaining steps have their own minimum.
    """

    def __init__(self) -> None:
        self._least = math.inf
        self._step: int | None = None
        self._new: list[Minimum] = []

    def add(self, step: float | None, loss: float | None) -> None:
        """Add a sample; values that are not finite are ignored. A loss without a step belongs to the newest step."""
        at = self._step
        if step is not None and math.isfinite(step):
            at = int(step)
            self._step = at if self._step is None else max(self._step, at)
        if loss is None or not loss < self._least or not math.isfinite(loss):
            return
        self._least = loss
        self._new.append((at, loss))
        if len(self._new) > MAX_MINIMA:
            self._new = [*self._new[:-1][::2], self._new[-1]]

    def take(self) -> tuple[Minimum, ...]:
        """The minima since the last call, the lowest last. If there were too many, every second one was dropped, but never the last."""
        new, self._new = tuple(self._new), []
        return new


class LossWatch:
    """Finds an attempt's first loss that is nan or inf, and the first finite one after it; `view`: an adopted attempt."""

    def __init__(self, view: AttemptState | None = None) -> None:
        self._finite = view.last_loss if view is not None else None
        self._first: ev.LossNotFinite | None = None
        self._count = 0
        self._is_reported = view is not None and view.not_finite is not None
        self._is_over = view is not None and view.finite_again is not None

    def take(self, attempt: int, seen: StepSeen) -> ev.LossNotFinite | ev.LossFinite | None:
        """What to journal after this sample, if anything."""
        loss, step = seen.values.get("loss"), seen.values.get("step")
        if loss is None:
            return None
        at = int(step) if step is not None and math.isfinite(step) else None
        if math.isfinite(loss):
            self._finite, self._first, self._count = loss, None, 0
            if not self._is_reported or self._is_over:
                return None
            self._is_over = True
            return ev.LossFinite(t=seen.t, attempt=attempt, loss=loss, step=at)
        self._count += 1
        self._first = self._first or ev.LossNotFinite(
            t=seen.t, attempt=attempt, value=str(loss), step=at, rank=seen.rank, last=self._finite
        )
        if self._is_reported or (self._finite is None and self._count < NOT_FINITE_FROM_START):
            return None
        self._is_reported = True
        return self._first


class JobProgress:
    """How far the job is, merged until it is journalled.

    Attributes:
        pending: what has not been journalled yet.
    """

    def __init__(self, *, stepped: bool = False) -> None:
        """`stepped`: the attempt has made a step already."""
        self.pending: ev.Progress | None = None
        self._stepped = stepped
        self._has_loss = False

    def add(self, attempt: int, seen: StepSeen) -> bool:
        """Merge a sample. Returns whether it is the attempt's first step, which shows where it continues."""
        fields: dict[str, Any] = {}
        self._has_loss = self._has_loss or "loss" in seen.values
        # The counter of an evaluation does not say where the training is, once the training has logged a loss itself.
        aside = POSITION if seen.evaluates and self._has_loss and "loss" not in seen.values else frozenset()
        for name, value in seen.values.items():
            # A sample that waited for its step may be older than the newest one, so it does not say where the job is.
            elsewhere = (seen.joined and name in OF_STEP) or (seen.headed and name == "epoch")
            if name in PROGRESS_FIELDS - aside and math.isfinite(value) and not elsewhere:
                fields[name] = int(value) if name in WHOLE else value
        if not fields:
            return False
        self.pending = merge_progress(self.pending, ev.Progress(t=seen.t, attempt=attempt, **fields))
        is_first = "step" in fields and not self._stepped
        self._stepped = self._stepped or "step" in fields
        return is_first


# -- the recorder --------------------------------------------------------------------------------------

PROGRESS_INTERVAL_S = 1.0
MOST_PHASES = 60
"""Changes of phase that are journalled at once in a burst; after that the newest is journalled as rarely as progress."""
MAX_EVIDENCE = 20
MAX_ADVISORIES = 20
SPEAKER_WAIT_S = 2.0
MAX_EARLY = 1000
BEHIND_BYTES = 1 << 20
BEHIND_S = 1.0
"""Reading is behind if at least this many bytes are unread for at least this long; less is just fresh output."""
BEHIND_INTERVAL_S = 10.0
log = logging.getLogger("stoker.keeper")


@dataclass(slots=True)
class _Memory:
    """The state of recording within one attempt."""

    attempt: int = 0
    progress: JobProgress = field(default_factory=JobProgress)
    minima: RunningMinima = field(default_factory=RunningMinima)
    losses: LossWatch = field(default_factory=LossWatch)
    last_progress: float = float("-inf")
    behind: Backlog | None = None
    behind_since: float | None = None
    reported_behind: bool = False
    next_backlog: float = float("-inf")
    phase: ev.Phase | None = None
    phases_left: float = MOST_PHASES
    phases_t: float = float("-inf")
    late_phase: ev.PhaseChanged | None = None
    late_checkpoint: ev.CheckpointCommitted | None = None
    last_checkpoint: float = float("-inf")
    wire: bool = False
    ready: bool = False
    speaker: int | None = None
    # Samples of another rank while rank 0 may merely be late, because the ranks' logs are not read at the same time.
    speaker_since: float = 0.0
    early: list[StepSeen] = field(default_factory=list)
    evidence_count: int = 0
    advised: set[str] = field(default_factory=set)
    checkpoints: set[tuple[int, bool]] = field(default_factory=set)
    evidence: set[tuple[object, ...]] = field(default_factory=set)
    # An earlier keeper journalled phases up to this time and checkpoints up to this step.
    phases_until: float = float("-inf")
    checkpoints_until: int = -1
    steps: dict[tuple[str, str], float] = field(default_factory=dict)


class Recorder:
    """Writes what was observed in the current attempt. One per keeper, used by its only thread.

    `backlog()`: how far the attempt's logs are read; None if nothing is being read. `redact` removes secrets from a line like the
    journal does, so that evidence recorded by an earlier keeper is recognized by its text. `apart_s()`: the current minimum seconds
    between events of one kind. `only_watches`: nothing is decided by steps, so the step where the bar of a resumed job starts counts.
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
        behind_interval_s: float = BEHIND_INTERVAL_S,
        only_watches: bool = False,
    ) -> None:
        self._only_watches = only_watches
        self._apart_s = apart_s
        self._behind_interval_s = behind_interval_s
        self._unwritable: set[str] = set()
        self._folder = series
        self._backlog = backlog
        self._redact = redact
        self._series = SeriesWriter(series)
        self._emit = emit
        self._clock = clock
        self._m = _Memory()
        self._sense = StepSense()

    def begin(self, attempt: int, *, adopted: RunState | None = None) -> None:
        """A new attempt, or one `adopted` in the given state: what is on disk is not written again."""
        self._m = _Memory(attempt)
        self._sense.begin()
        view = adopted.attempt if adopted is not None else None
        if adopted is None or view is None or view.number != attempt:
            return
        m = self._m
        m.ready = view.memory_base_bytes is not None
        m.progress, m.losses = JobProgress(stepped=view.first_step is not None), LossWatch(view)
        m.phase, m.phases_until = view.phase, view.phase_t if view.phase_t is not None else m.phases_until
        m.checkpoints = {(c.step, c.final) for c in adopted.checkpoints if c.attempt == attempt}
        m.checkpoints_until = max(view.checkpoint_steps, default=-1)
        m.evidence = {
            (moment.values.get("rank"), moment.values["failure"], moment.values["text"])
            for moment in adopted.timeline
            if moment.attempt == attempt and moment.kind is MomentKind.EVIDENCE
        }
        m.advised = {advisory.code for advisory in adopted.advisories if advisory.attempt == attempt}
        self._recall(view)

    def record(self, attempt: int, seen: Observation) -> None:
        """Write one observation."""
        match seen:
            case StepSeen(from_telemetry=True):
                self._step(attempt, seen)
            case StepSeen():
                if "step" in seen.values or not seen.again:
                    self._steps(attempt, self._sense.take(seen, self._clock.mono()))
            case StepHint():
                self._steps(attempt, self._sense.hint(seen, self._clock.mono()))
            case PhaseSeen():
                known = seen.t <= self._m.phases_until
                if seen.rank in {None, 0} and seen.phase is not self._m.phase and not known:
                    self._m.phase = seen.phase
                    self._m.late_phase = ev.PhaseChanged(
                        t=seen.t, attempt=attempt, phase=seen.phase, step=seen.step
                    )
                    self._emit_phase()
            case ReadySeen():
                if seen.rank in {None, 0} and not self._m.ready:
                    self._m.ready = True
                    self._emit(
                        ev.TrainerReady(
                            t=seen.t,
                            attempt=attempt,
                            resumed_step=seen.resumed_step,
                            memory_base_bytes=seen.memory_base_bytes,
                        )
                    )
            case CheckpointSeen():
                key = (seen.step, seen.final)
                known = key in self._m.checkpoints or seen.step < self._m.checkpoints_until
                if seen.rank in {None, 0} and not known:
                    self._m.checkpoints.add(key)
                    self._m.late_checkpoint = ev.CheckpointCommitted(
                        t=seen.t, attempt=attempt, step=seen.step, path=seen.path, final=seen.final
                    )
                    self._emit_checkpoint(0.0 if seen.final else self._apart_s())
            case AdviceSeen():
                self._advise(attempt, seen.t, seen.code, seen.text, seen.rank)
            case GpuSeen(device=gpu):
                self._emit(
                    ev.GpuFound(
                        t=seen.t,
                        index=gpu.index,
                        uuid=gpu.uuid,
                        name=gpu.name,
                        memory_total_bytes=gpu.memory_total_bytes,
                    )
                )
            case EvidenceLine():
                self._evidence(attempt, seen)
            case RankGone() | LinesSeen() | FactSeen():
                return  # handled by the attempt and by its health
            case Sampled():
                self._append(seen.stream, seen.t, seen.key, attempt, seen.values)
            case _ as unreachable:
                assert_never(unreachable)

    def tick(self) -> None:
        """Write what has waited long enough: samples for their step, events for their time."""
        self._emit_phase()
        self._emit_checkpoint(self._apart_s())
        self._steps(self._m.attempt, self._sense.due(self._clock.mono()))
        if self._m.early and self._has_waited():
            self._report_early()
        if self._clock.mono() >= self._m.next_backlog:
            self._look_behind()
        self._emit_progress(self._apart_s())

    def _emit_phase(self) -> None:
        m, now = self._m, self._clock.mono()
        if m.late_phase is None:
            return
        m.phases_left = min(m.phases_left + max(now - m.phases_t, 0.0) / self._apart_s(), MOST_PHASES)
        m.phases_t = now
        if m.phases_left >= 1.0:
            m.phases_left -= 1.0
            event, m.late_phase = m.late_phase, None
            self._flush_progress()
            self._emit(event)

    def _emit_checkpoint(self, apart_s: float) -> None:
        m, now = self._m, self._clock.mono()
        if m.late_checkpoint is None or now - m.last_checkpoint < apart_s:
            return
        event, m.late_checkpoint, m.last_checkpoint = m.late_checkpoint, None, now
        self._flush_progress()
        self._emit(event)

    def expect_backlog(self) -> None:
        """Report at once that logs that were written earlier are about to be read."""
        self._m.behind_since = float("-inf")
        self._look_behind()
        self._emit_progress(0.0)

    def flush(self) -> None:
        """Write everything that still waits."""
        self._flush_progress()
        self._emit_checkpoint(0.0)

    def _flush_progress(self) -> None:
        self._steps(self._m.attempt, self._sense.due(self._clock.mono(), final=True))
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
        m, since_s = self._m, self._clock.mono() - self._m.last_progress
        pending, behind = m.progress.pending, m.behind
        if pending is None and (since_s >= self._behind_interval_s if behind else m.reported_behind):
            pending = ev.Progress(t=self._clock.wall(), attempt=m.attempt)
        if pending is None or since_s < interval_s:
            return
        self._emit(
            replace(
                pending,
                minima=m.minima.take(),
                lag_bytes=behind.unread_bytes if behind else None,
                log_bytes=behind.size_bytes if behind else None,
            )
        )
        m.progress.pending, m.reported_behind = None, behind is not None
        m.last_progress = self._clock.mono()

    def close(self) -> None:
        """Write everything that waits, and close the series."""
        self.flush()
        try:
            self._series.close()
        except OSError as error:
            log.error("series: %s", error.strerror)

    def _steps(self, attempt: int, samples: Iterable[StepSeen]) -> None:
        for seen in samples:
            self._step(attempt, seen)

    def _step(self, attempt: int, seen: StepSeen) -> None:
        resumes = self._only_watches and seen.values.get("step", 0) > 0
        if seen.begins and "loss" not in seen.values and not resumes:
            # The step where a bar starts was not made; in a resumed job it is not even where the job continues.
            values = {name: value for name, value in seen.values.items() if name != "step"}
            seen = dataclasses.replace(seen, values=values)
        if seen.measured and "step" in seen.values:
            seen = dataclasses.replace(seen, values={**seen.values, **seen.measured})
        self._m.wire = self._m.wire or seen.from_telemetry
        if self._m.wire and not seen.from_telemetry:
            return  # the trainer's telemetry has the same values, exactly
        key = str(seen.rank) if seen.rank is not None else JOB_KEY
        if seen.rank is not None and self._is_new(RANKS, key, seen):
            self._append(RANKS, seen.t, key, attempt, seen.values)
        # One rank speaks for the job: rank 0, or a log without a rank. In foreign logs another rank may be the only one that
        # prints metrics (the last stage of a pipeline prints the loss).
        if not self._is_speaker(seen.rank, exact=seen.from_telemetry):
            return
        if self._m.speaker != 0 and (self._m.early or not self._has_waited()):
            self._m.early.append(seen)
        else:
            self._report_step(attempt, seen)

    def _report_step(self, attempt: int, seen: StepSeen) -> None:
        """Record a sample whose values count for the job."""
        if self._is_new(METRICS, JOB_KEY, seen):
            self._append(METRICS, seen.t, JOB_KEY, attempt, seen.values)
            self._m.minima.add(seen.values.get("step"), seen.values.get("loss"))
            self._note_loss(attempt, seen)
            self._add_progress(attempt, seen)

    def _note_loss(self, attempt: int, seen: StepSeen) -> None:
        event = self._m.losses.take(attempt, seen)
        if isinstance(event, ev.LossNotFinite):
            self._emit_progress(0.0)  # which has the last finite loss
        if event is not None:
            self._emit(event)

    def _add_progress(self, attempt: int, seen: StepSeen) -> None:
        is_first = self._m.progress.add(attempt, seen)
        self._emit_progress(0.0 if is_first else self._apart_s())

    def _report_early(self) -> None:
        """Count what another rank logged, because rank 0 logged nothing in time."""
        early, self._m.early = self._m.early, []
        for seen in early:
            self._report_step(self._m.attempt, seen)

    def _has_waited(self) -> bool:
        return self._clock.mono() - self._m.speaker_since >= SPEAKER_WAIT_S or len(self._m.early) >= MAX_EARLY

    def _is_speaker(self, rank: int | None, *, exact: bool) -> bool:
        """Whether the values of `rank` count for the job: rank 0's once it has logged any, until then those of the first rank that did."""
        if rank in {None, 0}:
            self._m.speaker = 0
            self._m.early.clear()
            return True
        if exact:
            return False
        if self._m.speaker is None:
            self._m.speaker, self._m.speaker_since = rank, self._clock.mono()
        return self._m.speaker == rank

    def _is_new(self, stream: str, key: str, seen: StepSeen) -> bool:
        step, known = seen.values.get("step"), self._m.steps.get((stream, key))
        return step is None or seen.joined or known is None or step > known

    def _recall(self, view: AttemptState) -> None:
        """Read how far an earlier keeper wrote the samples of this attempt, and journal the steps that it had no time for."""
        told = view.last_step if view.last_step is not None else -math.inf
        untold: list[Sample] = []
        for stream in (METRICS, RANKS):
            reader = SeriesReader(self._folder, stream)
            for sample in chain.from_iterable(iter(reader.read, [])):
                place, step = (stream, sample.k), sample.v.get("step")
                if sample.a != view.number or step is None:
                    continue
                self._m.steps[place] = max(self._m.steps.get(place, -1.0), step)
                if place == (METRICS, JOB_KEY):  # the journal may lack those of the last second
                    self._m.minima.add(step, sample.v.get("loss"))
                    if step > told:
                        untold = [*untold[:1], sample]  # which may include the attempt's first
        for sample in untold:
            values = {name: value for name, value in sample.v.items() if value is not None}
            # Its own time is in the series; an event must not be dated before the events above it.
            now = self._clock.wall()
            self._add_progress(view.number, StepSeen(t=now, rank=None, values=values, from_telemetry=False))

    def _evidence(self, attempt: int, seen: EvidenceLine) -> None:
        if self._m.evidence_count >= MAX_EVIDENCE:
            return
        text = self._redact(seen.text)[:400]  # truncated afterwards: half a token would not be recognized
        known = (seen.rank, seen.failure, text[:EVIDENCE_CHARS])
        if known in self._m.evidence:
            return
        self._m.evidence_count += 1
        self._m.evidence.add(known)
        self._emit(
            ev.EvidenceSeen(
                t=seen.t,
                attempt=attempt,
                failure=seen.failure,
                role=seen.role,
                text=text,
                path=seen.path,
                line=seen.line,
                rank=seen.rank,
            )
        )

    def _advise(self, attempt: int, t: float, code: str, text: str, rank: int | None) -> None:
        if code in self._m.advised or len(self._m.advised) >= MAX_ADVISORIES:
            return
        self._m.advised.add(code)
        self._emit(ev.Advisory(t=t, attempt=attempt, code=code, text=self._redact(text)[:400], rank=rank))

    def _append(
        self,
        stream: str,
        t: float,
        key: str,
        attempt: int,
        values: dict[str, float | None] | dict[str, float],
    ) -> None:
        try:
            self._series.append(stream, t, key, attempt, values)
            self._unwritable.discard(stream)
        except OSError as error:
            if stream not in self._unwritable:  # logged once, as there may be hundreds a second
                log.error("series %s: samples are not written: %s", stream, error.strerror)
            self._unwritable.add(stream)
