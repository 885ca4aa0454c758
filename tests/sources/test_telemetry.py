"""The trainer's wire is read tolerantly: either side may be newer."""

from __future__ import annotations

import math

from supervisor.sources.telemetry import TelemetryKind, parse_telemetry
from tests.conftest import not_none

STEP = b'{"v":1,"t_wall":5.5,"t_mono":2.25,"kind":"step","step":7,"loss":2.5,"lr":0.001,"tokens_per_sec":1200,"new":[1]}'


def test_a_step() -> None:
    record = not_none(parse_telemetry(STEP))
    assert (record.kind, record.step, record.t_wall, record.t_mono) == (TelemetryKind.STEP, 7, 5.5, 2.25)
    assert record.values == {"loss": 2.5, "lr": 0.001, "tokens_per_sec": 1200.0}


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
