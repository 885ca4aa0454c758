"""Parses the trainer's telemetry, one JSON object per line in ``telemetry/rank<r>.jsonl`` (docs/telemetry.md).

Lines are ``{v, t_wall, t_mono, kind: phase|step|checkpoint_committed|warning|exit, step, …}``. Readers
ignore partial lines, unknown kinds and unknown keys, so either side may be newer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from supervisor.run.events import BatchMeasured
from supervisor.run.jsonl import NOT_DECODED

MOST_DIMENSIONS = 16
_NOT_VALUES = frozenset({"v", "t_wall", "t_mono", "step", "rank", "exit_code", "pid", "local_rank", "code"})


class TelemetryKind(StrEnum):
    """The kind of a telemetry line."""

    PHASE = "phase"
    STEP = "step"
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    WARNING = "warning"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class TelemetryRecord:
    """A line of telemetry. Missing fields are None.

    `t_wall` is in seconds since the epoch, for display. `t_mono` is in seconds on the rank's monotonic clock.
    `values` holds numbers in base units under their canonical names (loss, lr, grad_norm, tokens_per_sec,
    step_time_s, memory_used_bytes, …), NaN where the trainer had no finite number. `text` is the raw message of
    a warning or the reason for an exit.
    """

    kind: TelemetryKind
    t_wall: float
    t_mono: float | None = None
    step: int | None = None
    phase: str | None = None
    path: str | None = None
    final: bool = False
    code: str | None = None
    text: str | None = None
    values: dict[str, float] = field(default_factory=dict)


def parse_telemetry(line: bytes) -> TelemetryRecord | None:
    """Parse a line. Return None for a partial line, an unknown kind, or anything else that is not telemetry."""
    try:
        document: Any = msgspec.json.decode(line)
    except NOT_DECODED:
        document = _lenient(line)
    if not isinstance(document, dict):
        return None
    t_wall = _number(document.get("t_wall"))
    try:
        kind = TelemetryKind(str(document.get("kind")))
    except ValueError:
        return None
    if t_wall is None:
        return None
    values: dict[str, float] = {}
    for name, held in document.items():
        if name in _NOT_VALUES:
            continue
        # The wire format is strict JSON, which uses null for a number that is not finite.
        value = math.nan if held is None else _number(held)
        if value is not None:
            values[name] = value
    return TelemetryRecord(
        kind=kind,
        t_wall=t_wall,
        t_mono=_number(document.get("t_mono")),
        step=_whole(document.get("step")),
        phase=_text(document.get("phase")),
        path=_text(document.get("path")),
        final=document.get("final") is True,
        code=_text(document.get("code")),
        text=_text(document.get("text")) or _text(document.get("message")) or _text(document.get("reason")),
        values=values,
    )


def measured_record(line: bytes) -> dict[str, Any] | None:
    """Parse a line of instrumentation output. Return None for a partial line, an oversized count, or other text."""
    try:
        document: Any = msgspec.json.decode(line)
    except NOT_DECODED:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        return None
    if any(type(held) is int and abs(held) >= 1 << 53 for held in document.values()):
        return None
    return _sound(document) if document["kind"] in _MEASURES else document


def _sound(record: dict[str, Any]) -> dict[str, Any] | None:
    """Drop what no measurement can be: negative or infinite numbers, a step of no length, and shapes that are none."""
    found = {
        name: held
        for name, held in record.items()
        if not isinstance(held, int | float) or (math.isfinite(held) and held >= 0)
    }
    for name, is_sound in _LISTS.items():
        if name in found and not (isinstance(found[name], list) and all(map(is_sound, found[name]))):
            del found[name]
    if 0 in (found.get("step_time_s"), found.get("steps")):
        found = {name: held for name, held in found.items() if name not in {"step_time_s", "steps"}}
    return found if type(found.get("step")) is int else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 40


_MEASURES = frozenset(("step", "timing", "batch", "shape"))
_LISTS: dict[str, Callable[[Any], bool]] = {
    "shapes": lambda shape: (
        isinstance(shape, list)
        and bool(shape)
        and len(shape) <= MOST_DIMENSIONS
        and all(map(_is_count, shape))
    ),
    "dtypes": lambda name: isinstance(name, str),
    "indices": _is_count,
}


def step_values(
    record: dict[str, Any], batch: BatchMeasured | None, optimizer_steps: float | None = 1.0
) -> dict[str, float]:
    """Return the values in an instrumentation `step` or `timing` record, keyed by canonical name. Rates cover all ranks.

    Args:
        record: the result of `measured_record`.
        batch: the attempt's measured batch. Without it, or with a token budget, there are no rates.
        optimizer_steps: the number of optimizer steps per step, or None if unknown.
    """
    steps, took_s = _number(record.get("steps")), _number(record.get("step_time_s"))
    found = {"memory_peak_bytes": _number(record.get("memory_peak_bytes"))}
    for name, count in (("step_time_s", steps), ("data_wait_s", steps), ("compute_s", 1.0)):
        seconds = _number(record.get(name))
        if seconds is not None and count and optimizer_steps is not None:
            found[name] = seconds / count * optimizer_steps
    if steps and took_s and batch is not None and batch.global_batch and not batch.unit:
        rate = found["samples_per_sec"] = steps * batch.global_batch / took_s
        found["tokens_per_sec"] = rate * batch.sequence_length if batch.sequence_length else None
    return {name: value for name, value in found.items() if value is not None}


def _lenient(line: bytes) -> Any:
    """Parse a line from Python's own JSON writer, which emits a bare NaN that JSON does not allow."""
    if b"NaN" not in line and b"Infinity" not in line:
        return None
    try:
        return json.loads(line)
    except NOT_DECODED:
        return None


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        # An integer too large for a float is not a measurement.
        return float(value) if abs(value) < 1 << 1000 else None
    if isinstance(value, float):
        return value
    if isinstance(value, str) and value in {"NaN", "Infinity", "-Infinity"}:
        return float(value)
    return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and math.isfinite(number) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
