"""What sensors tell the keeper: small frozen records on one queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from supervisor.run.events import Phase
from supervisor.run.records import FailureClass


@dataclass(frozen=True, slots=True)
class StepSeen:
    """Metrics of one line or telemetry record. `values`: canonical name to number, base units.

    `rank` is None where nothing tells. `from_telemetry`: the trainer's telemetry, which is exact; a line of
    a log is only believed where there is no telemetry. `drawn`: a state of a progress bar.
    `joined`: its line said no step, another line or a bar did. `begins`: the bar has not counted anything yet, so that
    its step is where it starts from: tqdm draws ``0/30``, and a resumed job then jumps to 11.
    """

    t: float
    rank: int | None
    values: dict[str, float]
    from_telemetry: bool
    drawn: bool = False
    joined: bool = False
    begins: bool = False


@dataclass(frozen=True, slots=True)
class StepHint:
    """A bar's state after it was wiped for a line: where the job stood when that line was written."""

    t: float
    rank: int | None
    values: dict[str, float]
    from_telemetry: bool = False


@dataclass(frozen=True, slots=True)
class PhaseSeen:
    """The trainer says what it is doing."""

    t: float
    rank: int | None
    phase: Phase
    step: int | None
    from_telemetry: bool = True


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

    `stop_signal`: the line tells of a SIGTERM, and not of who sent it.
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


Observation: TypeAlias = (
    StepSeen
    | StepHint
    | PhaseSeen
    | ReadySeen
    | CheckpointSeen
    | WarningSeen
    | EvidenceHit
    | Sampled
    | SensorFact
)
