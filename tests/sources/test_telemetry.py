"""The trainer's wire is read tolerantly: either side may be newer."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from supervisor.sources.telemetry import TelemetryKind, parse_telemetry

STEP = b'{"v":1,"t_wall":5.5,"t_mono":2.25,"kind":"step","step":7,"loss":2.5,"lr":0.001,"tokens_per_sec":1200,"new":[1]}'


def test_a_step() -> None:
    record = parse_telemetry(STEP)
    assert record is not None
    assert (record.kind, record.step, record.t_wall, record.t_mono) == (TelemetryKind.STEP, 7, 5.5, 2.25)
    assert record.values == {"loss": 2.5, "lr": 0.001, "tokens_per_sec": 1200.0}


def test_not_a_number_in_all_spellings() -> None:
    for loss in (b"null", b"NaN", b'"NaN"'):
        record = parse_telemetry(b'{"v":1,"t_wall":1,"kind":"step","step":1,"loss":%s}' % loss)
        assert record is not None
        assert math.isnan(record.values["loss"])
    record = parse_telemetry(b'{"v":2,"t_wall":1,"kind":"step","loss":-Infinity,"ok":true}')
    assert record is not None
    assert record.values == {"loss": -math.inf}


def test_the_other_kinds() -> None:
    done = parse_telemetry(
        b'{"v":1,"t_wall":1,"kind":"checkpoint_committed","step":20,"path":"/c/20","final":true}'
    )
    assert done is not None
    assert (done.step, done.path, done.final) == (20, "/c/20", True)
    phase = parse_telemetry(b'{"v":1,"t_wall":1,"kind":"phase","phase":"stepping","rank":1}')
    assert phase is not None
    assert (phase.phase, phase.step) == ("stepping", None)
    warning = parse_telemetry(b'{"v":1,"t_wall":1,"kind":"warning","code":"slow_data","text":"waits"}')
    assert warning is not None
    assert (warning.code, warning.text) == ("slow_data", "waits")
    left = parse_telemetry(b'{"v":1,"t_wall":1,"kind":"exit","step":9,"code":75,"reason":"stopped"}')
    assert left is not None
    assert (left.text, left.values) == ("stopped", {})


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


@given(st.binary(max_size=100), st.dictionaries(st.text(max_size=8), st.integers() | st.floats() | st.text()))
def test_nothing_makes_it_raise(data: bytes, more: dict[str, object]) -> None:
    parse_telemetry(data)
    parse_telemetry(STEP[:40] + data)
    parse_telemetry(json.dumps({"t_wall": 1.0, "kind": "step", **more}).encode())
