"""What an attempt showed of its micro-batch, and what earlier runs of the same kind did."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.job.batch import BatchSpec, MemoryPoint
from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.job.spec import JobSpec
from supervisor.keeper.base.background import within
from supervisor.preflight.memory import kind_of
from supervisor.run.answers import JobKind, MemoryLine, recall_memory, remember_memory
from supervisor.run.paths import NodePaths
from supervisor.run.records import OUT_OF_MEMORY
from supervisor.run.series import GPU, RANKS, highest
from supervisor.run.state import AttemptState, RunState

DRIVER_S = 5.0


def trial_of(
    node: NodePaths, view: AttemptState, batch: BatchSpec | None, point: MemoryPoint | None
) -> MemoryTrial | None:
    """What attempt `view` showed; None where its batch is unknown, or where it neither stepped nor ran out of memory."""
    if batch is None or view.verdict is None:
        return None
    micro = batch.micro_batch_per_rank
    if view.verdict.failure in OUT_OF_MEMORY:
        if point is None:
            return MemoryTrial(micro, fitted=False)
        needed = point.allocated_bytes + point.tried_bytes
        return MemoryTrial(
            micro,
            fitted=False,
            peak_bytes=needed,
            capacity_bytes=point.capacity_bytes,
            base_bytes=point.base_bytes,
        )
    if view.first_step is None:
        return None
    measure, peak, capacity = _peak(node, view.number)
    base = view.memory_base_bytes or 0
    return MemoryTrial(
        micro, fitted=True, peak_bytes=peak, capacity_bytes=capacity, measure=measure, base_bytes=base
    )


def _peak(node: NodePaths, attempt: int) -> tuple[Measure, int | None, int | None]:
    """The most that a rank held, as exactly as it was measured."""
    most: dict[Measure, float] = {}
    total: float | None = None
    for values in highest(node.series, RANKS, attempt).values():
        measure = Measure.ALLOCATOR if "memory_reserved_bytes" in values else Measure.RESIDENT
        if "memory_peak_bytes" in values:
            most[measure] = max(most.get(measure, 0.0), values["memory_peak_bytes"])
    for values in highest(node.series, GPU, attempt).values():
        total = values.get("memory_total_bytes") or total
        if "memory_used_bytes" in values:
            most[Measure.DEVICE] = max(most.get(Measure.DEVICE, 0.0), values["memory_used_bytes"])
    for measure in Measure:
        if measure in most:
            room = total if measure is not Measure.RESIDENT else None
            return measure, int(most[measure]), int(room) if room is not None else None
    return Measure.ALLOCATOR, None, None


def known_trials(record_job: JobSpec, state: RunState, env: Mapping[str, str]) -> tuple[MemoryTrial, ...]:
    """The trials of earlier runs of the same kind, of this run's probes, of its attempts: oldest first."""
    kind = _kind(record_job)
    earlier = (
        [line.trial for line in recall_memory(kind, env, but_run=state.run_id)] if kind is not None else []
    )
    return (*earlier, *state.memory_trials)


def remember_trial(
    job: JobSpec, state: RunState, trial: MemoryTrial, env: Mapping[str, str], now: float
) -> None:
    """Keep a trial for later runs."""
    kind = _kind(job)
    if kind is not None:
        remember_memory(MemoryLine(kind=kind, trial=trial, t=now, run=state.run_id), env)


def _kind(job: JobSpec) -> JobKind | None:
    """The kind of job, which names the GPU: the driver is asked, and may not answer after a GPU has failed."""
    return within(DRIVER_S, lambda: kind_of(job), "stoker-kind")
