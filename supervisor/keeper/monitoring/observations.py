"""What sensors report to the keeper: small frozen records on one queue. The trainer's telemetry becomes such records, too."""

from __future__ import annotations

import math
import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

from supervisor.keeper.base.keeper_clock import Clock, of_others
from supervisor.policy.health.stall import Printed
from supervisor.run import events as ev
from supervisor.sources.telemetry import TelemetryKind, TelemetryRecord, parse_telemetry

LOSSES = frozenset({"loss", "val_loss"})
MAX_LINE_BYTES = 1 << 16
"""The longest line of telemetry that is parsed."""
RECEIVE_S = 0.1
"""Time to spend on observations per pass of a loop, in seconds. A flood of lines must not delay a stop or a request."""
NOT_METRICS = frozenset({"memory_cap_bytes", "memory_limit_bytes"})
ReportedEvent: TypeAlias = (
    ev.PhaseChanged | ev.TrainerReady | ev.CheckpointCommitted | ev.Advisory | ev.EvidenceSeen | ev.GpuFound
)


@dataclass(frozen=True, slots=True)
class StepSeen:
    """Metrics of one log line or telemetry record. `values`: canonical name to number, in base units.

    `rank` is None if unknown. `from_telemetry`: from the trainer's telemetry, which is exact; log lines count only without telemetry.
    `drawn`: a state of a progress bar. `bar`: a bar on its own line. `joined`: the step comes from another line or a bar. `begins`: the
    bar has not counted anything yet, so its step is only where it starts (tqdm draws ``0/30`` before a resumed job jumps to 11).
    `log`: the name of the log. `headed`: the epoch comes from a heading above. `evaluates`: the line is of an evaluation.
    `plain_time`: the line does not show how many steps its time covers. `measured`: values of the instrumentation, which take precedence.
    `again` means that an earlier keeper had read this line.
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
    plain_time: bool = False
    measured: dict[str, float] = field(default_factory=dict)
    again: bool = False
    evaluates: bool = False


@dataclass(frozen=True, slots=True)
class StepHint:
    """The state of a bar that was wiped for a line and redrawn: the step at which the line was written.

    `log` names the bar's log. `below` means that the line is right above. If not, it is in a different log or comes later.
    """

    t: float
    rank: int | None
    values: dict[str, float]
    log: str = ""
    below: bool = False


@dataclass(frozen=True, slots=True)
class LinesSeen:
    """The newest lines, or part of a line, from one read of a rank's log. `again` means that an earlier keeper read them."""

    t: float
    log: str
    lines: tuple[Printed, ...]
    again: bool = False


@dataclass(frozen=True, slots=True)
class FactSeen:
    """A record of the instrumentation in a rank's process (docs/telemetry.md)."""

    t: float
    rank: int
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reported:
    """An event that a sensor reports. The recorder sets its attempt and drops repetitions.

    `rank` is the rank that reported the event, or None if unknown. `stop_signal` marks an `EvidenceSeen` whose line reports a
    SIGTERM but not its sender.
    """

    event: ReportedEvent
    rank: int | None = None
    stop_signal: bool = False


@dataclass(frozen=True, slots=True)
class RankGone:
    """A rank's process ended. `exit_code` is negative for a signal, and None if the launcher reaped the process first."""

    t: float
    local_rank: int
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sensor readings: stream of run.series, key, values (None: unavailable)."""

    t: float
    stream: str
    key: str
    values: dict[str, float | None]


Observation: TypeAlias = StepSeen | StepHint | LinesSeen | FactSeen | Reported | RankGone | Sampled


def received(
    waiting: queue.SimpleQueue[Observation], clock: Clock, timeout_s: float
) -> Iterator[Observation]:
    """Wait for the first observation, then yield those queued now, for at most `RECEIVE_S` seconds."""
    try:
        yield waiting.get(timeout=timeout_s)
        until = clock.mono() + RECEIVE_S
        for _ in range(waiting.qsize()):
            if clock.mono() > until:
                return
            yield waiting.get_nowait()
    except queue.Empty:
        return


def is_telemetry(seen: Observation) -> bool:
    """Check whether an observation shows that the trainer sends telemetry."""
    if isinstance(seen, StepSeen):
        return seen.from_telemetry
    return isinstance(seen, Reported) and isinstance(seen.event, ev.PhaseChanged | ev.CheckpointCommitted)


def from_telemetry(line: bytes, *, rank: int | None, clock: Clock) -> Iterator[Observation]:
    """Yield the observations in one line of telemetry (see docs/telemetry.md) from the file of `rank`."""
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
            for event in _phase(record, t):
                yield Reported(event, rank)
        case TelemetryKind.CHECKPOINT_COMMITTED:
            if record.step is not None and record.path is not None:
                saved = ev.CheckpointCommitted(
                    t=t, attempt=0, step=record.step, path=record.path, final=record.final
                )
                yield Reported(saved, rank)
        case TelemetryKind.WARNING:
            # The demo's note about its own memory cap is not advice.
            if record.text is not None and record.code != "memory_cap":
                yield advice(t, record.code or record.text[:40], record.text, rank)
        case TelemetryKind.EXIT:
            return
        case _ as unreachable:
            assert_never(unreachable)


def advice(t: float, code: str, text: str, rank: int | None = None) -> Reported:
    """Return a message to report once: a warning from the trainer, a lost GPU, a missing driver."""
    return Reported(ev.Advisory(t=t, attempt=0, code=code, text=text, rank=rank), rank)


def _phase(record: TelemetryRecord, t: float) -> Iterator[ReportedEvent]:
    try:
        phase = ev.Phase(str(record.phase))
    except ValueError:
        return
    yield ev.PhaseChanged(t=t, attempt=0, phase=phase, step=record.step)
    base, resumed = record.values.get("memory_base_bytes"), record.values.get("resumed_step")
    if base is not None:
        yield ev.TrainerReady(
            t=t,
            attempt=0,
            resumed_step=int(resumed) if resumed is not None and math.isfinite(resumed) else None,
            memory_base_bytes=int(base) if math.isfinite(base) else None,
        )
