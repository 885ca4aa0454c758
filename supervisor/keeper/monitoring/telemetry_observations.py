"""The trainer's telemetry as observations (docs/telemetry.md says what the lines hold)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

from supervisor.keeper.clock import Clock, of_others
from supervisor.keeper.monitoring.observations import (
    CheckpointSeen,
    Observation,
    PhaseSeen,
    ReadySeen,
    StepSeen,
    WarningSeen,
)
from supervisor.run.events import Phase
from supervisor.sources.telemetry import TelemetryKind, TelemetryRecord, parse_telemetry

MAX_LINE_BYTES = 1 << 16
NOT_METRICS = frozenset({"memory_cap_bytes", "memory_limit_bytes"})


def from_telemetry(line: bytes, *, rank: int | None, clock: Clock) -> Iterator[Observation]:
    """Observations of one telemetry line; none when it says nothing that we know. `rank`: whose file it is."""
    record = parse_telemetry(line) if len(line) <= MAX_LINE_BYTES else None
    if record is None:
        return
    t = of_others(record.t_wall, clock, record.t_mono)
    match record.kind:
        case TelemetryKind.STEP:
            values = {n: v for n, v in record.values.items() if n not in NOT_METRICS}
            if record.step is not None:
                values["step"] = float(record.step)
            yield StepSeen(t=t, rank=rank, values=values, from_telemetry=True)
        case TelemetryKind.PHASE:
            yield from _phase(record, rank, t)
        case TelemetryKind.CHECKPOINT_COMMITTED:
            if record.step is not None and record.path is not None:
                yield CheckpointSeen(t=t, rank=rank, step=record.step, path=record.path, final=record.final)
        case TelemetryKind.WARNING:
            # What the demo says of its own memory cap is no advice to anybody.
            if record.text is not None and record.code != "memory_cap":
                yield WarningSeen(t=t, rank=rank, code=record.code or record.text[:40], text=record.text)
        case TelemetryKind.EXIT:
            return
        case _ as unreachable:
            assert_never(unreachable)


def _phase(record: TelemetryRecord, rank: int | None, t: float) -> Iterator[Observation]:
    try:
        phase = Phase(str(record.phase))
    except ValueError:
        return
    yield PhaseSeen(t=t, rank=rank, phase=phase, step=record.step)
    base, resumed = record.values.get("memory_base_bytes"), record.values.get("resumed_step")
    if base is not None:
        yield ReadySeen(
            t=t,
            rank=rank,
            resumed_step=int(resumed) if resumed is not None and math.isfinite(resumed) else None,
            memory_base_bytes=int(base) if math.isfinite(base) else None,
        )
