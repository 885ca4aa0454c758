"""From observations to the run directory: samples to series, events to the journal, throttled.

Steps arrive hundreds a second; the journal gets at most one `Progress` a second, and fewer once it is large: always the last, with every
low of the loss since the one before. Phases and checkpoints likewise. While the reading of the logs is behind, it says by how much, and at least every 10 s.
An adopting keeper reads the logs again from their start: what was recorded before is recognised by its
step and dropped here.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, assert_never

from msgspec.structs import replace

from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.observations import (
    CheckpointSeen,
    EvidenceHit,
    FactSeen,
    GpuSeen,
    LinesSeen,
    Observation,
    PhaseSeen,
    RankGone,
    ReadySeen,
    Sampled,
    SensorFact,
    StepHint,
    StepSeen,
    WarningSeen,
)
from supervisor.keeper.recording.sample_steps import StepSense
from supervisor.run import events as ev
from supervisor.run.fold import MEASURED
from supervisor.run.series import CONTEXT, JOB_KEY, METRICS, RANKS, Sample, SeriesReader, SeriesWriter
from supervisor.run.state import AttemptState, MomentKind, RunState
from supervisor.run.timeline import EVIDENCE_CHARS
from supervisor.sources.tail.tailer import Backlog
from supervisor.text.redact import redact_text

Minimum: TypeAlias = tuple[int | None, float]
"""A step (None before any was named) and its loss."""

# A loss that falls with every step makes a low of each; a journal's line stays below 1 KiB with so many.
MAX_MINIMA = 32


class RunningMinima:
    """Every new minimum of the loss of one attempt. With many steps a second the journal's newest value misses them.

    All of them and not the least alone: a later attempt may repeat some of these steps, and those that are left have
    a minimum of their own.
    """

    def __init__(self) -> None:
        self._least = math.inf
        self._step: int | None = None
        self._new: list[Minimum] = []

    def add(self, step: float | None, loss: float | None) -> None:
        """A sample; values that are not finite are ignored. A loss without a step belongs to the newest one."""
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
        """Those since the last call, the least last; of too many every second one is left out, never the last."""
        new, self._new = tuple(self._new), []
        return new


# An attempt whose loss is no number from its first step on is reported after so many: of some scripts the first is an empty mean.
NOT_FINITE_FROM_START = 3
PROGRESS_INTERVAL_S = 1.0
MOST_PHASES = 60
"""Changes of phase within a moment; after them one is journalled with each progress, the newest."""
MOST_LOSS_NAME = 40
MAX_EVIDENCE = 20
MAX_ADVISORIES = 20
SPEAKER_WAIT_S = 2.0
MAX_EARLY = 1000
# After an adoption, at most this many of an attempt's samples are recognised by their values (some 5 MB).
MAX_RECALLED = 50_000
BEHIND_BYTES = 1 << 20
BEHIND_S = 1.0
"""Reading counts as behind when at least this many bytes waited for at least this long: less is what a job has just written."""
BEHIND_INTERVAL_S = 10.0
PROGRESS_FIELDS = frozenset(MEASURED)
OF_STEP = frozenset({"step", "epoch_step", "epoch_steps"})
WHOLE = OF_STEP | {"total_steps"}
PLACE = WHOLE | {"epoch", "total_epochs"}

log = logging.getLogger("stoker.keeper")


@dataclass(slots=True)
class _Memory:
    """What is remembered within one attempt."""

    attempt: int = 0
    pending: ev.Progress | None = None
    minima: RunningMinima = field(default_factory=RunningMinima)
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
    stepped: bool = False
    # Epoch and step of the newest loss; whether steps without a loss continue beyond it, as a bar's do.
    at_loss: tuple[float, float] | None = None
    # Where the counter stood that named the total.
    at_total: float | None = None
    bare_steps: bool = False
    # The newest finite loss, the first of the losses since then that are not finite, and how many those are.
    finite_loss: float | None = None
    not_finite: ev.LossNotFinite | None = None
    not_finite_count: int = 0
    # What of the first of them was journalled.
    reported_not_finite: bool = False
    reported_finite: bool = False
    speaker: int | None = None
    # What another rank said while rank 0 may only be late: the logs of ranks are not read at the same moment.
    speaker_since: float = 0.0
    early: list[StepSeen] = field(default_factory=list)
    evidence_count: int = 0
    advised: set[str] = field(default_factory=set)
    checkpoints: set[tuple[int, bool]] = field(default_factory=set)
    evidence: set[tuple[object, ...]] = field(default_factory=set)
    # What an earlier keeper journalled: phases up to this time, checkpoints up to this step.
    phases_until: float = float("-inf")
    checkpoints_until: int = -1
    steps: dict[tuple[str, str], float] = field(default_factory=dict)
    # Samples whose lines may have said no step: known by their values, and how often.
    stepless: Counter[int] = field(default_factory=Counter)


class Recorder:
    """Writes what was observed of the current attempt. One a keeper, used by its one thread.

    `backlog()`: how far the attempt's logs are read; None where nothing is being read. `redact`: takes secrets out of a line, as
    the journal does: evidence that an earlier keeper recorded is recognised by its text. `apart_s()`: how far apart reports of one kind
    are by now. `only_watches`: nothing is decided by the steps, so that one which
    was made before counts: a bar of a resumed job stands there at its start.
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
        """A new attempt, or one `adopted` with the state it was left in: what is on disk is not written again."""
        self._m = _Memory(attempt)
        self._sense.begin()
        view = adopted.attempt if adopted is not None else None
        if adopted is None or view is None or view.number != attempt:
            return
        m = self._m
        m.ready, m.stepped = view.memory_base_bytes is not None, view.first_step is not None
        m.phase, m.phases_until = view.phase, view.phase_t if view.phase_t is not None else m.phases_until
        m.checkpoints = {(c.step, c.final) for c in adopted.checkpoints if c.attempt == attempt}
        m.checkpoints_until = max(view.checkpoint_steps, default=-1)
        m.finite_loss = view.last_loss
        m.reported_not_finite, m.reported_finite = view.not_finite is not None, view.finite_again is not None
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
                if "step" in seen.values or not self._is_repeated(seen):
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
                    self._tell_phase()
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
                    self._tell_checkpoint(0.0 if seen.final else self._apart_s())
            case WarningSeen():
                self._advise(attempt, seen.t, seen.code, seen.text, seen.rank)
            case SensorFact():
                self._advise(attempt, seen.t, seen.code, seen.text, None)
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
            case EvidenceHit():
                self._evidence(attempt, seen)
            case RankGone() | LinesSeen() | FactSeen():
                return  # the attempt that lives tells the one, its health hears the other
            case Sampled():
                self._append(seen.stream, seen.t, seen.key, attempt, seen.values)
            case _ as unreachable:
                assert_never(unreachable)

    def tick(self) -> None:
        """Write what has waited long enough: samples for their step, progress for its second."""
        self._tell_phase()
        self._tell_checkpoint(self._apart_s())
        self._steps(self._m.attempt, self._sense.due(self._clock.mono()))
        if self._m.early and self._is_settled():
            self._report_early()
        if self._clock.mono() >= self._m.next_backlog:
            self._look_behind()
        self._tell_progress(self._apart_s())

    def _tell_phase(self) -> None:
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

    def _tell_checkpoint(self, apart_s: float) -> None:
        m, now = self._m, self._clock.mono()
        if m.late_checkpoint is None or now - m.last_checkpoint < apart_s:
            return
        event, m.late_checkpoint, m.last_checkpoint = m.late_checkpoint, None, now
        self._flush_progress()
        self._emit(event)

    def expect_backlog(self) -> None:
        """Logs that were written before are about to be read: say so at once."""
        self._m.behind_since = float("-inf")
        self._look_behind()
        self._tell_progress(0.0)

    def flush(self) -> None:
        """Write what still waits for its step or its second."""
        self._flush_progress()
        self._tell_checkpoint(0.0)

    def _flush_progress(self) -> None:
        self._steps(self._m.attempt, self._sense.due(self._clock.mono(), final=True))
        self._report_early()
        self._look_behind()
        self._tell_progress(0.0)

    def _look_behind(self) -> None:
        m, now, backlog = self._m, self._clock.mono(), self._backlog()
        m.next_backlog = now + BEHIND_S
        if backlog is None or backlog.unread_bytes < BEHIND_BYTES:
            m.behind = m.behind_since = None
            return
        m.behind_since = now if m.behind_since is None else m.behind_since
        m.behind = backlog if now - m.behind_since >= BEHIND_S else None

    def _tell_progress(self, interval_s: float) -> None:
        m, since_s = self._m, self._clock.mono() - self._m.last_progress
        pending, behind = m.pending, m.behind
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
        m.pending, m.reported_behind, m.last_progress = None, behind is not None, self._clock.mono()

    def close(self) -> None:
        """Write what waits and close the series."""
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
            # Where a bar starts is no step that was made: of a resumed job it is not even where that continues.
            values = {name: value for name, value in seen.values.items() if name != "step"}
            seen = dataclasses.replace(seen, values=values)
        if seen.measured and "step" in seen.values:
            seen = dataclasses.replace(seen, values={**seen.values, **seen.measured})
        self._m.wire = self._m.wire or seen.from_telemetry
        if self._m.wire and not seen.from_telemetry:
            return  # the console line of a trainer whose telemetry says the same, exactly
        key = str(seen.rank) if seen.rank is not None else JOB_KEY
        if seen.rank is not None and self._is_new(RANKS, key, seen):
            self._append(RANKS, seen.t, key, attempt, seen.values)
        # One rank speaks for the job: rank 0, or whoever has no rank. In foreign logs the first rank that
        # prints a metric may be another (the last stage of a pipeline prints the loss).
        if not self._is_speaker(seen.rank, exact=seen.from_telemetry):
            return
        if self._m.speaker != 0 and (self._m.early or not self._is_settled()):
            self._m.early.append(seen)
        else:
            self._report_step(attempt, seen)

    def _report_step(self, attempt: int, seen: StepSeen) -> None:
        """A sample whose values count for the job."""
        if self._is_new(METRICS, JOB_KEY, seen):
            self._append(METRICS, seen.t, JOB_KEY, attempt, seen.values)
            self._m.minima.add(seen.values.get("step"), seen.values.get("loss"))
            self._heed_loss(attempt, seen)
            self._progress(attempt, seen)
            if seen.renamed and (step := seen.values.get("step")) is not None:
                name = self._redact(seen.renamed)[:MOST_LOSS_NAME]
                text = f"the loss is {name} from step {step:.0f} on"
                self._advise(attempt, seen.t, ev.loss_renamed_code(name, step), text, None)

    def _heed_loss(self, attempt: int, seen: StepSeen) -> None:
        """The first time in an attempt that the loss is nan or inf, and that it is a number again, are journalled."""
        m, loss, step = self._m, seen.values.get("loss"), seen.values.get("step")
        if loss is None:
            return
        at = int(step) if step is not None and math.isfinite(step) else None
        if math.isfinite(loss):
            m.finite_loss, m.not_finite, m.not_finite_count = loss, None, 0
            if m.reported_not_finite and not m.reported_finite:
                m.reported_finite = True
                self._emit(ev.LossFinite(t=seen.t, attempt=attempt, loss=loss, step=at))
            return
        if m.reported_not_finite:
            return
        m.not_finite_count += 1
        m.not_finite = m.not_finite or ev.LossNotFinite(
            t=seen.t, attempt=attempt, value=str(loss), step=at, rank=seen.rank, last=m.finite_loss
        )
        if m.finite_loss is not None or m.not_finite_count >= NOT_FINITE_FROM_START:
            m.reported_not_finite = True
            self._tell_progress(0.0)  # what waits has the finite loss before
            self._emit(m.not_finite)

    def _report_early(self) -> None:
        """Rank 0 logged nothing in time: what another rank logged counts."""
        early, self._m.early = self._m.early, []
        for seen in early:
            self._report_step(self._m.attempt, seen)

    def _is_settled(self) -> bool:
        return self._clock.mono() - self._m.speaker_since >= SPEAKER_WAIT_S or len(self._m.early) >= MAX_EARLY

    def _is_speaker(self, rank: int | None, *, exact: bool) -> bool:
        """Whether the values of `rank` count for the job: those of rank 0 once it has logged any, until then those of the first rank that did."""
        if rank in {None, 0}:
            self._m.speaker = 0
            self._m.early.clear()
            return True
        if exact:
            return False
        if self._m.speaker is None:
            self._m.speaker, self._m.speaker_since = rank, self._clock.mono()
        return self._m.speaker == rank

    def _progress(self, attempt: int, seen: StepSeen) -> None:
        fields: dict[str, Any] = {}
        aside = PLACE if self._is_evaluation(seen) or self._is_earlier_bar(seen) else frozenset()
        for name, value in seen.values.items():
            # A sample that waited for its step may stand behind what came meanwhile; where the job is, others tell.
            elsewhere = (seen.joined and name in OF_STEP) or (seen.headed and name == "epoch")
            if name in PROGRESS_FIELDS - aside and math.isfinite(value) and not elsewhere:
                fields[name] = int(value) if name in WHOLE else value
        if not fields:
            return
        if self._is_of_other_total(seen):
            fields["total_steps"] = 0
        if self._m.pending is not None:
            kept = {n: v for n in PROGRESS_FIELDS if (v := getattr(self._m.pending, n)) is not None}
            if "step" in fields:
                gone = OF_STEP | {"eta_s"} if "epoch_step" in fields else OF_STEP
                kept = {name: value for name, value in kept.items() if name not in gone}
            if 0 < kept.get("total_steps", 0) < fields.get("step", 0):
                del kept["total_steps"]  # it was that of an epoch
            fields = {**kept, **fields}
        self._m.pending = ev.Progress(t=seen.t, attempt=attempt, **fields)
        # Where an attempt continues is told by its first step: that one is not merged with those of its second.
        first, self._m.stepped = "step" in fields and not self._m.stepped, self._m.stepped or "step" in fields
        self._tell_progress(0.0 if first else self._apart_s())

    def _is_earlier_bar(self, seen: StepSeen) -> bool:
        """Whether a bar that names no loss stands at an epoch before the newest loss's: of a resumed job it counts from its start."""
        epoch = seen.values.get("epoch")
        known = self._m.at_loss
        is_bar = (seen.bar or seen.drawn) and "loss" not in seen.values
        return is_bar and known is not None and epoch is not None and epoch < known[0] < math.inf

    def _is_of_other_total(self, seen: StepSeen) -> bool:
        """Whether a loss names a step far before the counter that named the total: that one counted something else, as a bar over the data."""
        m, step = self._m, seen.values.get("step") if not seen.joined else None
        if step is None:
            return False
        if "total_steps" in seen.values:
            m.at_total = step
            return False
        is_other = m.at_total is not None and "loss" in seen.values and 2 * step < m.at_total
        if is_other:
            m.at_total = None
        return is_other

    def _is_evaluation(self, seen: StepSeen) -> bool:
        """Whether a counter without a loss stands behind the newest loss, in a log whose steps all have one: what it counts is no training."""
        m, values = self._m, seen.values
        epoch, step = values.get("epoch"), values.get("step") if not seen.joined else None
        if values.keys() - CONTEXT <= PLACE:
            return False  # a heading: another training may begin
        known = m.at_loss if m.at_loss is not None else (-math.inf, -math.inf)
        here = (known[0] if epoch is None else epoch, math.inf if step is None else step)
        if "loss" in values:
            m.at_loss = here if step is not None else m.at_loss
            return False
        is_behind = m.at_loss is not None and here < known
        is_held_out = "val_loss" in values  # of a backlog the training's own step before it may be left out
        m.bare_steps = m.bare_steps or (step is not None and not is_behind and not is_held_out)
        return is_behind and not m.bare_steps

    def _is_new(self, stream: str, key: str, seen: StepSeen) -> bool:
        step, known = seen.values.get("step"), self._m.steps.get((stream, key))
        return step is None or seen.joined or known is None or step > known

    def _recall(self, view: AttemptState) -> None:
        """What an earlier keeper wrote of this attempt's samples; what it had no time to journal of them is journalled."""
        attempt, told = view.number, view.last_step if view.last_step is not None else -math.inf
        newest: deque[int] = deque(maxlen=MAX_RECALLED)
        untold: list[Sample] = []
        for stream in (METRICS, RANKS):
            reader = SeriesReader(self._folder, stream)
            while samples := reader.read():
                for sample in samples:
                    if sample.a != attempt:
                        continue
                    place, step = (stream, sample.k), sample.v.get("step")
                    if step is not None:
                        self._m.steps[place] = max(self._m.steps.get(place, -1.0), step)
                    if place == (METRICS, JOB_KEY):  # of the last second the journal may not have them
                        self._m.minima.add(step, sample.v.get("loss"))
                        if step is not None and step > told:
                            untold = [*untold[:1], sample]  # the attempt's first may be among them
                    if stream == RANKS or sample.k == JOB_KEY:
                        newest.append(_mark(sample.k, sample.v))
        self._m.stepless = Counter(newest)
        for sample in untold:
            values = {name: value for name, value in sample.v.items() if value is not None}
            # Its own time stands in the series: an event may not be dated before what stands above it.
            now = self._clock.wall()
            self._progress(attempt, StepSeen(t=now, rank=None, values=values, from_telemetry=False))

    def _is_repeated(self, seen: StepSeen) -> bool:
        """Whether a sample without a step of its own was written by an earlier keeper; each counts once."""
        mark = _mark(str(seen.rank) if seen.rank is not None else JOB_KEY, seen.values)
        if self._m.stepless[mark] <= 0:
            return False
        self._m.stepless[mark] -= 1
        return True

    def _evidence(self, attempt: int, hit: EvidenceHit) -> None:
        if self._m.evidence_count >= MAX_EVIDENCE:
            return
        text = self._redact(hit.text)[:400]  # cut afterwards: half a token is recognised by nobody
        known = (hit.rank, hit.failure, text[:EVIDENCE_CHARS])
        if known in self._m.evidence:
            return
        self._m.evidence_count += 1
        self._m.evidence.add(known)
        self._emit(
            ev.EvidenceSeen(
                t=hit.t,
                attempt=attempt,
                failure=hit.failure,
                role=hit.role,
                text=text,
                path=hit.path,
                line=hit.line,
                rank=hit.rank,
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
            if stream not in self._unwritable:  # once: there may be hundreds a second
                log.error("series %s: samples are not written: %s", stream, error.strerror)
            self._unwritable.add(stream)


def _mark(key: str, values: Mapping[str, float | None]) -> int:
    """A sample by what it says apart from its step; a series has no NaN, so that is None."""
    text = ((n, v if v is not None and math.isfinite(v) else None) for n, v in values.items() if n != "step")
    return hash((key, frozenset(text)))
