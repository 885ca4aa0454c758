"""The trainer's wire is read tolerantly: either side may be newer."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from msgspec import structs

from supervisor.run.events import BatchMeasured
from supervisor.sources.telemetry import (
    TelemetryKind,
    TelemetryRecord,
    measured_record,
    parse_telemetry,
    step_values,
)
from tests.conftest import not_none

STEP = b'{"v":1,"t_wall":5.5,"t_mono":2.25,"kind":"step","step":7,"loss":2.5,"lr":0.001,"tokens_per_sec":1200,"new":[1]}'


def test_a_step() -> None:
    values = {"loss": 2.5, "lr": 0.001, "tokens_per_sec": 1200.0}
    assert parse_telemetry(STEP) == TelemetryRecord(TelemetryKind.STEP, 5.5, 2.25, step=7, values=values)


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"kind": "phase", "phase": "evaluate"}, {"phase": "evaluate"}),
        ({"kind": "checkpoint_committed", "step": 8, "path": "/c/8", "final": True}, {"step": 8, "path": "/c/8", "final": True}),
        ({"kind": "checkpoint_committed", "path": 3, "final": 1}, {"values": {"path": 3.0, "final": 1.0}}),
        ({"kind": "warning", "code": "slow", "message": "a disk"}, {"code": "slow", "text": "a disk"}),
        ({"kind": "warning", "text": "first", "message": "second"}, {"text": "first"}),
        ({"kind": "exit", "reason": "done", "exit_code": 0, "pid": 5, "local_rank": 1, "rank": 3}, {"text": "done"}),
        ({"kind": "step", "step": None, "big": 1 << 1001, "size": 1 << 60}, {"values": {"size": float(1 << 60)}}),
    ],
)  # fmt: skip
def test_every_kind_of_line(fields: dict[str, Any], read: dict[str, Any]) -> None:
    line = json.dumps({"v": 1, "t_wall": 5.5, **fields}).encode()
    assert parse_telemetry(line) == TelemetryRecord(TelemetryKind(fields["kind"]), 5.5, **read)


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (b'{"kind":"step","step":1,"steps":2}', {"kind": "step", "step": 1, "steps": 2}),
        (b'{"kind":"step","step":9007199254740991}', {"kind": "step", "step": (1 << 53) - 1}),
        (b'{"kind":"step","step":9007199254740992}', None),
        (b'{"kind":"phase","step":-9007199254740992}', None),
        # What is no measurement is left out; a step without its number is none.
        (b'{"kind":"step","steps":2}', None),
        (b'{"kind":"step","step":"1"}', None),
        (b'{"kind":"step","step":1,"steps":0,"step_time_s":1.0,"save_s":-1}', {"kind": "step", "step": 1}),
        (b'{"kind":"step","step":1,"shapes":[[2,4]],"dtypes":["int64"]}', {"kind": "step", "step": 1, "shapes": [[2, 4]], "dtypes": ["int64"]}),
        (b'{"kind":"batch","step":1,"shapes":["ab"],"dtypes":null,"indices":["x"]}', {"kind": "batch", "step": 1}),
        (b'{"kind":"batch","step":1,"shapes":[[]],"dtypes":[1],"indices":5}', {"kind": "batch", "step": 1}),
        (b'{"kind":"batch","step":1,"shapes":[[1099511627776]],"indices":[-1]}', {"kind": "batch", "step": 1}),
        (b'{"kind":"step"', None),
        (b'{"kind":3}', None),
        (b"[1]", None),
    ],
)  # fmt: skip
def test_a_measured_line(line: bytes, read: dict[str, Any] | None) -> None:
    assert measured_record(line) == read


BATCH = BatchMeasured(t=0.0, attempt=1, global_batch=16, sequence_length=100)
TOOK = {"steps": 4, "step_time_s": 2.0, "data_wait_s": 0.4, "compute_s": 0.3, "memory_peak_bytes": 7}
EACH = {"step_time_s": 0.5, "data_wait_s": 0.1, "compute_s": 0.3, "memory_peak_bytes": 7.0}


@pytest.mark.parametrize(
    ("record", "batch", "optimizer_steps", "values"),
    [
        (TOOK, BATCH, 1.0, {**EACH, "samples_per_sec": 32.0, "tokens_per_sec": 3200.0}),
        (TOOK, structs.replace(BATCH, sequence_length=None), 1.0, {**EACH, "samples_per_sec": 32.0}),
        (TOOK, structs.replace(BATCH, global_batch=None), 1.0, EACH),
        (TOOK, structs.replace(BATCH, unit="tokens"), 1.0, EACH),
        (TOOK, None, 1.0, EACH),
        (TOOK, None, 2.0, {"step_time_s": 1.0, "data_wait_s": 0.2, "compute_s": 0.6, "memory_peak_bytes": 7.0}),
        (TOOK, None, None, {"memory_peak_bytes": 7.0}),
        ({"step_time_s": 2.0, "compute_s": 0.3}, BATCH, 1.0, {"compute_s": 0.3}),
        ({"steps": 0, "step_time_s": 0.0}, BATCH, 1.0, {}),
    ],
)  # fmt: skip
def test_a_measured_step_in_canonical_names(
    record: dict[str, Any],
    batch: BatchMeasured | None,
    optimizer_steps: float | None,
    values: dict[str, float],
) -> None:
    assert step_values(record, batch, optimizer_steps) == pytest.approx(values)


def test_not_a_number_in_all_spellings() -> None:
    for loss in (b"null", b"NaN", b'"NaN"'):
        record = not_none(parse_telemetry(b'{"v":1,"t_wall":1,"kind":"step","step":1,"loss":%s}' % loss))
        assert math.isnan(record.values["loss"])
    record = not_none(parse_telemetry(b'{"v":2,"t_wall":1,"kind":"step","loss":-Infinity,"ok":true}'))
    assert record.values == {"loss": -math.inf}


def test_what_is_not_the_wire_is_passed_over() -> None:
    assert parse_telemetry(STEP[:-1]) is None
    for line in (
        b"",
        b"3",
        b"[]",
        b'{"t_wall":1}',
        b'{"t_wall":1,"kind":"later"}',
        b'{"kind":"step"}',
        b"[" * 9999,
    ):
        assert parse_telemetry(line) is None
