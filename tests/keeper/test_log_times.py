"""When a watched job was, by the clocks in its logs: never by when somebody looked."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest

from supervisor.keeper.observed_run import ObservedLog, Target
from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.journal import read_state
from supervisor.run.state import A_PIPE, AttemptState, Finished
from tests.conftest import wait_until
from tests.keeper.test_observer import observing

# 2026-11-20 10:00:00 UTC: yesterday's.
BEGAN = 1795168800.0
STAMPED = [
    f"2026-11-20 1{n // 60}:{n % 60:02d}:00,250 INFO step {n} loss {3 / (n + 1):.3f}" for n in range(90)
]
TRACE = ["Traceback (most recent call last):", '  File "t.py", line 3, in <module>', "KeyError: 'missing'"]


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def watched(tmp_path: Path, lines: list[str], *, packed: bool = False, ended: bool = True) -> AttemptState:
    """The attempt of an observed log, once it is closed (or, of a live one, judged)."""
    log = tmp_path / ("x.log.gz" if packed else "x.log")
    data = "".join(f"{line}\n" for line in lines).encode()
    log.write_bytes(gzip.compress(data) if packed else data)
    os.utime(log, (BEGAN + 89 * 60 + 1, BEGAN + 89 * 60 + 1))
    plain = tmp_path / "plain.log" if packed else log
    if packed:
        plain.write_bytes(data)
    known = ObservedLog(str(plain), log.name, packed=str(log) if packed else "")
    target = Target("x.log", str(log), (known,), ended=ended)
    with observing(tmp_path, target, log) as (observer, run):
        wait_until(
            lambda: observer.state.attempt is not None and observer.state.attempt.verdict is not None, 20
        )
    state = read_state(run.node().journal)
    assert isinstance(state.condition, Finished)
    assert state.attempt is not None
    return state.attempt


@pytest.mark.parametrize("packed", [False, True])
def test_a_log_that_was_over_has_its_own_times(tmp_path: Path, packed: bool) -> None:
    attempt = watched(tmp_path, [*STAMPED, *TRACE], packed=packed)
    assert attempt.found_over
    assert attempt.started_t == BEGAN + 0.25
    assert attempt.ended_t == BEGAN + 89 * 60 + 0.25


@pytest.mark.parametrize("ended", [False, True])
def test_of_a_copy_the_last_stamp_is_the_end_and_a_clock_alone_names_no_day(
    tmp_path: Path, *, ended: bool
) -> None:
    log = tmp_path / "x.log"
    log.write_text("".join(f"12:{n:02d}:00 epoch {n} loss 2.5\n" for n in range(10)), encoding="utf-8")
    os.utime(log, (BEGAN + 4 * 3600 + 400, BEGAN + 4 * 3600 + 400))  # agrees with no zone
    target = Target("x.log", str(log), (ObservedLog(str(log), log.name),), ended=ended)
    with observing(tmp_path, target, log) as (observer, _):
        assert wait_until(
            lambda: observer.state.attempt is not None and observer.state.attempt.quiet_since is not None, 20
        )
        assert observer.state.attempt is not None
        assert observer.state.attempt.day_guessed
        assert observer.state.elapsed_s(time.time(), has_keeper=True) == 9 * 60


def test_of_a_log_without_a_clock_no_beginning_is_known(tmp_path: Path) -> None:
    attempt = watched(tmp_path, [*(f"step {n} loss 2.5" for n in range(90)), *TRACE])
    assert attempt.found_over
    assert attempt.started_t is None
    assert attempt.ended_t is not None


def test_a_log_that_is_still_written_began_when_it_says(tmp_path: Path) -> None:
    attempt = watched(tmp_path, [*STAMPED, *TRACE], ended=False)
    assert not attempt.found_over
    assert attempt.started_t == BEGAN + 0.25


@pytest.mark.parametrize(
    ("mode", "source", "dated", "began_t"),
    [
        ("launched", None, False, 4.0),
        ("observed", "/w/train.log", False, None),
        ("observed", "/w/train.log", True, 1.0),
        ("observed", "pid 811", True, 1.0),
        ("observed", A_PIPE, False, 4.0),
    ],
)
def test_the_time_of_attaching_is_no_beginning_of_the_job(
    mode: str, source: str | None, dated: bool, began_t: float | None
) -> None:
    facts: list[ev.Event] = [
        ev.RunStarted(t=4.0, run_id="x", name="x", mode=mode, host="box", source=source),
        ev.LaunchIntended(t=5.0, attempt=1, argv=(), reason="watching"),
        ev.AttemptStarted(t=5.0, attempt=1, pid=0, start_time=0.0),
    ]
    if dated:
        facts.append(ev.LogsDated(t=6.0, attempt=1, began_t=1.0))
    assert replay(facts).began_t == began_t
