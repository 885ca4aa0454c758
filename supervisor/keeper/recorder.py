"""From observations to the run directory: samples to series, facts to the journal, throttled.

Steps arrive hundreds a second; the journal gets at most one `Progress` a second, and always the last.
An adopting keeper reads the logs again from their start: what was recorded before is recognised by its
step and dropped here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

from supervisor.keeper.clock import Clock
from supervisor.keeper.observations import (
    CheckpointSeen,
    EvidenceHit,
    Observation,
    PhaseSeen,
    ReadySeen,
    Sampled,
    SensorFact,
    StepSeen,
    WarningSeen,
)
from supervisor.run import events as ev
from supervisor.run.series import METRICS, RANKS, SeriesReader, SeriesWriter
from supervisor.run.state import RunState

PROGRESS_INTERVAL_S = 1.0
MAX_EVIDENCE = 20
MAX_ADVISORIES = 20
JOB_KEY = "job"
PROGRESS_FIELDS = frozenset(ev.Progress.__struct_fields__) - {"t", "v", "attempt"}
WHOLE = frozenset({"step", "total_steps"})

log = logging.getLogger("stoker.keeper")


@dataclass(slots=True)
class _Memory:
    """What is remembered within one attempt."""

    pending: ev.Progress | None = None
    last_progress: float = float("-inf")
    phase: ev.Phase | None = None
    wire: bool = False
    ready: bool = False
    speaker: int | None = None
    evidence_count: int = 0
    advised: set[str] = field(default_factory=set)
    checkpoints: set[tuple[int, bool]] = field(default_factory=set)
    evidence: set[str] = field(default_factory=set)
    # What an earlier keeper journalled: phases up to this time, checkpoints up to this step.
    phases_until: float = float("-inf")
    checkpoints_until: int = -1
    steps: dict[tuple[str, str], float] = field(default_factory=dict)


class Recorder:
    """Writes what was observed of the current attempt. One a keeper, used by its one thread."""

    def __init__(self, series: Path, emit: Callable[[ev.Event], None], clock: Clock) -> None:
        self._folder = series
        self._series = SeriesWriter(series)
        self._emit = emit
        self._clock = clock
        self._m = _Memory()

    def begin(self, attempt: int, *, adopted: RunState | None = None) -> None:
        """A new attempt, or one `adopted` with the state it was left in: what is on disk is not written again."""
        self._m = _Memory()
        view = adopted.attempt if adopted is not None else None
        if adopted is None or view is None or view.number != attempt:
            return
        m = self._m
        m.ready = view.memory_base_bytes is not None
        m.phase, m.phases_until = view.phase, view.phase_t if view.phase_t is not None else m.phases_until
        m.checkpoints = {(c.step, c.final) for c in adopted.checkpoints if c.attempt == attempt}
        m.checkpoints_until = max(view.checkpoint_steps, default=-1)
        m.evidence = {mark.text for mark in adopted.timeline if mark.attempt == attempt}
        m.advised = {advisory.code for advisory in adopted.advisories if advisory.attempt == attempt}
        for stream in (METRICS, RANKS):
            reader = SeriesReader(self._folder, stream)
            while samples := reader.read():
                for sample in samples:
                    step = sample.v.get("step")
                    if sample.a == attempt and step is not None:
                        self._m.steps[stream, sample.k] = max(
                            self._m.steps.get((stream, sample.k), -1.0), step
                        )

    def record(self, attempt: int, seen: Observation) -> None:
        """Write one observation."""
        match seen:
            case StepSeen():
                self._step(attempt, seen)
            case PhaseSeen():
                known = seen.t <= self._m.phases_until
                if seen.rank in {None, 0} and seen.phase is not self._m.phase and not known:
                    self._m.phase = seen.phase
                    self.flush()
                    self._emit(ev.PhaseChanged(t=seen.t, attempt=attempt, phase=seen.phase, step=seen.step))
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
                    self.flush()
                    self._emit(
                        ev.CheckpointCommitted(
                            t=seen.t, attempt=attempt, step=seen.step, path=seen.path, final=seen.final
                        )
                    )
            case WarningSeen():
                self._advise(attempt, seen.t, seen.code, seen.text, seen.rank)
            case SensorFact():
                self._advise(attempt, seen.t, seen.code, seen.text, None)
            case EvidenceHit():
                self._evidence(attempt, seen)
            case Sampled():
                self._append(seen.stream, seen.t, seen.key, attempt, seen.values)
            case _ as unreachable:
                assert_never(unreachable)

    def tick(self) -> None:
        """Journal the progress that has waited for its second: steps may have stopped coming."""
        if self._m.pending is not None and self._clock.mono() - self._m.last_progress >= PROGRESS_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Journal the progress that waits for its second."""
        if self._m.pending is not None:
            self._emit(self._m.pending)
            self._m.pending = None
            self._m.last_progress = self._clock.mono()

    def close(self) -> None:
        """Write what waits and close the series."""
        self.flush()
        try:
            self._series.close()
        except OSError as error:
            log.error("series: %s", error.strerror)

    def _step(self, attempt: int, seen: StepSeen) -> None:
        self._m.wire = self._m.wire or seen.from_wire
        if self._m.wire and not seen.from_wire:
            return  # the console line of a trainer whose telemetry says the same, exactly
        key = str(seen.rank) if seen.rank is not None else JOB_KEY
        if seen.rank is not None and self._is_new(RANKS, key, seen.values):
            self._append(RANKS, seen.t, key, attempt, seen.values)
        # One rank speaks for the job: rank 0, or whoever has no rank. In foreign logs the first rank that
        # prints a metric may be another (the last stage of a pipeline prints the loss).
        if not self._speaks(seen.rank, exact=seen.from_wire):
            return
        if not self._is_new(METRICS, JOB_KEY, seen.values):
            return
        self._append(METRICS, seen.t, JOB_KEY, attempt, seen.values)
        self._progress(attempt, seen)

    def _speaks(self, rank: int | None, *, exact: bool) -> bool:
        """Whether `rank` speaks for the job: rank 0 does once it has said anything, until then the first that did."""
        if rank in {None, 0}:
            self._m.speaker = 0
            return True
        if exact:
            return False
        if self._m.speaker is None:
            self._m.speaker = rank
        return self._m.speaker == rank

    def _progress(self, attempt: int, seen: StepSeen) -> None:
        fields: dict[str, Any] = {}
        for name, value in seen.values.items():
            if name in PROGRESS_FIELDS and math.isfinite(value):
                fields[name] = int(value) if name in WHOLE else value
        if not fields:
            return
        if self._m.pending is not None:
            kept = {n: v for n in PROGRESS_FIELDS if (v := getattr(self._m.pending, n)) is not None}
            fields = {**kept, **fields}
        self._m.pending = ev.Progress(t=seen.t, attempt=attempt, **fields)
        self.tick()

    def _is_new(self, stream: str, key: str, values: dict[str, float]) -> bool:
        step = values.get("step")
        seen = self._m.steps.get((stream, key))
        return step is None or seen is None or step > seen

    def _evidence(self, attempt: int, hit: EvidenceHit) -> None:
        who = f"rank {hit.rank}: " if hit.rank is not None else ""
        mark = f"{who}{hit.failure} — {hit.text[:160]}"
        if self._m.evidence_count >= MAX_EVIDENCE or mark in self._m.evidence:
            return
        self._m.evidence_count += 1
        self._m.evidence.add(mark)
        self._emit(
            ev.EvidenceSeen(
                t=hit.t,
                attempt=attempt,
                failure=hit.failure,
                role=hit.role,
                text=hit.text[:400],
                path=hit.path,
                line=hit.line,
                rank=hit.rank,
            )
        )

    def _advise(self, attempt: int, t: float, code: str, text: str, rank: int | None) -> None:
        if code in self._m.advised or len(self._m.advised) >= MAX_ADVISORIES:
            return
        self._m.advised.add(code)
        self._emit(ev.Advisory(t=t, attempt=attempt, code=code, text=text[:400], rank=rank))

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
        except OSError as error:
            log.error("series %s: a sample was not written: %s", stream, error.strerror)
