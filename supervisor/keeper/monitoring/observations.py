"""What sensors report to the keeper: small frozen records on one queue; and the trainer's telemetry as such records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

from supervisor.keeper.base.keeper_clock import Clock, of_others
from supervisor.policy.health.output import Printed
from supervisor.run.events import Phase
from supervisor.run.records import FailureClass
from supervisor.sources.gpu import GpuDevice
from supervisor.sources.telemetry import TelemetryKind, TelemetryRecord, parse_telemetry

LOSSES = frozenset({"loss", "val_loss"})
MAX_LINE_BYTES = 1 << 16
"""Of a line of telemetry."""
NOT_METRICS = frozenset({"memory_cap_bytes", "memory_limit_bytes"})


@dataclass(frozen=True, slots=True)
class StepSeen:
    """Metrics of one line or telemetry record. `values`: canonical name to number, base units.

    `rank` is None where it is not known. `from_telemetry`: the trainer's telemetry, which is exact; a line of
    a log is only believed where there is no telemetry. `drawn`: a state of a progress bar. `bar`: a bar on a line of its own.
    `joined`: its line named no step, another line or a bar did. `begins`: the bar has not counted anything yet, so that
    its step is where it starts from: tqdm draws ``0/30``, and a resumed job then jumps to 11. `log`: the name of its log.
    `headed`: its epoch is that of a heading above it. `renamed`: the name of the loss, where it was another loss until here.
    `plain_time`: its line does not show of how many steps its time is. `measured`: values of the instrumentation, which replace the line's.
    """

    t: float
    rank: int | None
    values: dict[str, float]
    from_telemetry: bool
    drawn: bool = False
    bar: bool = False
    joined: bool = False
    headed: bool = False
    begins: bool = False
    log: str = ""
    renamed: str = ""
    plain_time: bool = False
    measured: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepHint:
    """A bar's state after it was wiped for a line: where the job stood when that line was written.

    `log`: the name of its log. `below`: the line stands right above; else it went to another log, or is written later.
    """

    t: float
    rank: int | None
    values: dict[str, float]
    from_telemetry: bool = False
    log: str = ""
    below: bool = False


@dataclass(frozen=True, slots=True)
class LinesSeen:
    """What was read at once of a rank's log, whatever it says; its newest lines, or the part of one that was read."""

    t: float
    log: str
    lines: tuple[Printed, ...]
    from_telemetry: bool = False


@dataclass(frozen=True, slots=True)
class PhaseSeen:
    """The trainer reports what it is doing."""

    t: float
    rank: int | None
    phase: Phase
    step: int | None
    from_telemetry: bool = True


@dataclass(frozen=True, slots=True)
class FactSeen:
    """A record of the instrumentation in a rank's process (docs/telemetry.md)."""

    t: float
    rank: int
    record: dict[str, Any]
    from_telemetry: bool = False


@dataclass(frozen=True, slots=True)
class ReadySeen:
    """The trainer is about to step: what it resumed from and what it holds (see `events.TrainerReady`)."""

    t: float
    rank: int | None
    resumed_step: int | None
    memory_base_bytes: int | None
    from_telemetry: bool = True


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """The trainer says that a checkpoint is committed."""

    t: float
    rank: int | None
    step: int
    path: str
    final: bool
    from_telemetry: bool = True


@dataclass(frozen=True, slots=True)
class WarningSeen:
    """The trainer warns."""

    t: float
    rank: int | None
    code: str
    text: str
    from_telemetry: bool = True


@dataclass(frozen=True, slots=True)
class EvidenceHit:
    """A signature matched a line. `path` is relative to the attempt folder, `line` 1-based.

    `stop_signal`: the line reports a SIGTERM, and not who sent it.
    """

    t: float
    failure: FailureClass
    role: str
    rank: int | None
    path: str
    line: int | None
    text: str
    from_telemetry: bool = False
    stop_signal: bool = False


@dataclass(frozen=True, slots=True)
class RankGone:
    """A rank's process ended. `exit_code`: negative for a signal, None where its launcher was faster to read it."""

    t: float
    local_rank: int
    exit_code: int | None
    from_telemetry: bool = False


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sensor readings: stream of run.series, key, values (None: not to be had)."""

    t: float
    stream: str
    key: str
    values: dict[str, float | None]
    from_telemetry: bool = False


@dataclass(frozen=True, slots=True)
class SensorFact:
    """Something about a sensor worth saying once (a lost GPU, a driver that is absent)."""

    t: float
    code: str
    text: str
    from_telemetry: bool = False


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """A card that is sampled under this index."""

    t: float
    device: GpuDevice
    from_telemetry: bool = False


Observation: TypeAlias = (
    StepSeen
    | StepHint
    | LinesSeen
    | PhaseSeen
    | FactSeen
    | ReadySeen
    | CheckpointSeen
    | WarningSeen
    | EvidenceHit
    | RankGone
    | Sampled
    | SensorFact
    | GpuSeen
)


def from_telemetry(line: bytes, *, rank: int | None, clock: Clock) -> Iterator[Observation]:
    """Observations of one telemetry line (docs/telemetry.md says what it holds); none when it says nothing that we know. `rank`: whose file it is."""
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
