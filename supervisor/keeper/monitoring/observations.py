"""What sensors report to the keeper: small frozen records on one queue. Trainer telemetry is turned into the same records."""

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
"""The longest telemetry line that is parsed."""
RECEIVE_S = 0.1
"""Seconds to spend on observations in each iteration of a loop. A flood of lines must not delay a stop or a request."""
NOT_METRICS = frozenset({"memory_cap_bytes", "memory_limit_bytes"})
ReportedEvent: TypeAlias = (
    ev.PhaseChanged | ev.TrainerReady | ev.CheckpointCommitted | ev.Advisory | ev.EvidenceSeen | ev.GpuFound
)


@dataclass(frozen=True, slots=True)
class StepSeen:
    """Metrics from one log line or telemetry record. `values` maps canonical names to numbers in base units.

    `rank` is None if unknown. `from_telemetry` marks the trainer's own telemetry, which is exact; log lines count only
    if there is none. `drawn` marks a progress bar's state, `bar` a bar on its own line, `joined` a step taken from another
    line or a bar. If `begins`, the bar has not counted anything yet, so its step is only its starting point (tqdm draws
    ``0/30`` before a resumed job jumps to 11). `log` is the log's name. `headed` means the epoch comes from a heading
    above, `evaluates` that the line is about an evaluation, and `plain_time` that the line does not say how many steps
    its time covers. `measured` holds instrumentation values, which take precedence. `again` means that an earlier keeper
    had already read this line.
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
    """A progress bar that was cleared to print a line and then redrawn. Its state shows the step at which the line was printed.

    `log` names the bar's log. If `below`, the bar is directly below the line; if not, the line is in another log or later.
    """

    t: float
    rank: int | None
    values: dict[str, float]
    log: str = ""
    below: bool = False


@dataclass(frozen=True, slots=True)
class LinesSeen:
    """The latest lines, or part of a line, from one read of a rank's log. `again` means an earlier keeper had read them."""

    t: float
    log: str
    lines: tuple[Printed, ...]
    again: bool = False


@dataclass(frozen=True, slots=True)
class FactSeen:
    """An instrumentation record from a rank's process (docs/telemetry.md)."""

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
    """A rank's process exited. `exit_code` is negative for a signal, and None if the launcher reaped the process first."""

    t: float
    local_rank: int
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sensor readings: the stream (see run.series), the key, and the values (None if unavailable)."""

    t: float
    stream: str
    key: str
    values: dict[str, float | None]


Observation: TypeAlias = StepSeen | StepHint | LinesSeen | FactSeen | Reported | RankGone | Sampled


def received(
    waiting: queue.SimpleQueue[Observation], clock: Clock, timeout_s: float
) -> Iterator[Observation]:
    """Wait for the first observation, then yield all that are queued, for at most `RECEIVE_S` seconds."""
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
    """Yield the observations in one telemetry line (see docs/telemetry.md) from the file for `rank`."""
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
    """Return a message to be reported once, such as a warning from the trainer, a lost GPU or a missing driver."""
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
