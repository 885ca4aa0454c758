"""A wall clock that is set while a run lives: no duration of the journal is negative or longer than it was."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from supervisor.job.spec import HangSettings, Timing
from supervisor.keeper.base.keeper_clock import Clock, ClockWatch, of_others
from supervisor.keeper.base.ledger import Ledger, RunContext
from supervisor.keeper.loop import Keeper
from supervisor.keeper.monitoring.observations import StepSeen, from_telemetry
from supervisor.keeper.recording.recovery_report import RecoveryReport
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import replay
from supervisor.run.journal import read_state
from supervisor.run.records import Decision, DecisionKind, FailureClass, SpecChange
from supervisor.views.model.replay import ReplayReader, record_of
from tests.conftest import not_none
from tests.keeper.fakes import Emitted, FakeClock, job_of, run_in, verdict_of
from tests.keeper.test_stalls import make

HOUR_S = 3600.0


@dataclass
class SetClock:
    """The machine's wall clock, set by a test: `time.time` for `keeper.clock`."""

    by_s: float = 0.0
    after_s: float = 0.0
    began: float = field(default_factory=time.monotonic)
    real = staticmethod(time.time)

    def __call__(self) -> float:
        moved = time.monotonic() - self.began >= self.after_s
        return self.real() + (self.by_s if moved else 0.0)


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_the_keepers_time_goes_on_and_says_how_far_the_machines_is(
    monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    machine = SetClock()
    monkeypatch.setattr("supervisor.keeper.base.keeper_clock.time.time", machine)
    clock, told = Clock(), Emitted()
    watch = ClockWatch(clock, told)
    before = clock.wall()
    assert before == pytest.approx(SetClock.real(), abs=1.0)
    watch.look()
    machine.by_s = by_s
    assert 0 <= clock.wall() - before < 60
    assert clock.ahead_s() == pytest.approx(by_s, abs=1.0)
    for _ in range(3):
        watch.look()
    machine.by_s = by_s + 0.2  # what NTP slews is no news
    watch.look()
    assert [round(fact.ahead_s) for fact in told.facts if isinstance(fact, ev.ClockSet)] == [by_s]
    machine.by_s = 0.0
    watch.look()
    state = replay(told.facts)
    assert len(told.facts) == 2
    assert state.clock_ahead_s == pytest.approx(0.0, abs=1.0)
    assert state.timeline[-1].values["by_s"] == pytest.approx(HOUR_S, abs=1.0)


@pytest.mark.timeout(60)
@pytest.mark.fault("journal and disk", "the clock is set back during a back-off", "the wait does not grow")
def test_a_wait_that_a_clock_set_back_would_make_an_hour_is_begun_anew(tmp_path: Path) -> None:
    """The keeper that began to wait died; the clock was set back before another adopted the run."""
    t = time.time() + HOUR_S
    record = job_of(tmp_path, sys.executable, "-c", "pass")
    run = run_in(
        tmp_path,
        ev.RunStarted(t=t, run_id="run-1", name="job", mode="launched", host="box"),
        ev.LaunchIntended(t=t, attempt=1, argv=(), reason="first launch"),
        ev.AttemptEnded(t=t, attempt=1, exit_code=1),
        ev.Diagnosed(t=t, attempt=1, verdict=verdict_of()),
        ev.Decided(t=t, attempt=1, decision=Decision(DecisionKind.RESTART, "again", change=SpecChange())),
        ev.BackoffStarted(t=t, attempt=1, until=t + 0.5, delay_s=0.5),
    )
    keeper = Keeper(run, record, env=os.environ)
    try:
        assert keeper.run_to_end() == 0
    finally:
        keeper.close()
    assert len(keeper.state.attempts) == 2


@pytest.mark.timeout(20)
def test_a_hold_that_a_clock_set_back_would_make_an_hour_is_begun_anew(tmp_path: Path) -> None:
    t = time.time() + HOUR_S
    record = job_of(tmp_path, interactive=True, timing=Timing(hold_s=0.5))
    started = ev.RunStarted(t=t, run_id="run-1", name="job", mode="launched", host="box")
    keeper = Keeper(
        run_in(
            tmp_path,
            started,
            ev.LaunchIntended(t=t, attempt=1, argv=(), reason="first launch"),
            ev.AttemptEnded(t=t, attempt=1, exit_code=1),
            ev.Diagnosed(t=t, attempt=1, verdict=verdict_of(FailureClass.CUDA_OOM)),
            ev.Held(t=t, attempt=1, reason="no", until=t + 0.5),
        ),
        record,
        env=os.environ,
    )
    try:
        keeper.run_to_end()
    finally:
        keeper.close()
    assert isinstance(keeper.state.condition, st.Finished)
    assert keeper.state.condition.reason == "nobody answered: no"


def wire(t: float, t_mono: float, step: int) -> bytes:
    record = {"v": 1, "t_wall": t, "t_mono": t_mono, "kind": "step", "rank": 0, "step": step}
    return json.dumps(record).encode()


@pytest.mark.parametrize("by_s", [-HOUR_S, HOUR_S])
def test_steps_told_with_a_clock_that_was_set_are_neither_old_nor_of_the_future(
    tmp_path: Path, by_s: float
) -> None:
    bench = make(tmp_path, HangSettings())
    bench.health.begin(1)
    bench.steps(30)
    bench.clock.ahead = by_s
    for step in range(31, 61):
        bench.clock.now += 0.2
        assert not bench.health.tick()
        line = wire(bench.clock.wall() + by_s, bench.clock.mono(), step)
        for seen in from_telemetry(line, rank=0, clock=bench.clock):
            assert isinstance(seen, StepSeen)
            assert seen.t == pytest.approx(bench.clock.wall(), abs=0.01)
            bench.health.observe(seen)
    assert not bench.facts(ev.StallFlagged)
    assert not bench.wait(1.8)
    assert bench.wait(360), "a real silence is found all the same"
    bench.health.close()


@pytest.mark.fault(
    "journal and disk",
    "a rank reports a checkpoint, and the clock is set back before that is read",
    "the checkpoint has the time at which it was written",
)
@pytest.mark.parametrize("by_s", [-3 * HOUR_S, -90.0, 2 * HOUR_S])
def test_what_was_written_under_another_setting_is_placed_where_it_happened(
    monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    machine = SetClock()
    monkeypatch.setattr("supervisor.keeper.base.keeper_clock.time.time", machine)
    clock = Clock()
    machine.by_s = by_s
    clock.ahead_s()
    written_t, written_mono, at = machine(), time.monotonic(), clock.wall()
    machine.by_s = 0.0
    assert of_others(written_t, clock, written_mono) == pytest.approx(at, abs=1.0)
    if by_s > 0:  # also for a keeper that adopts the run after that
        assert of_others(written_t, Clock(), written_mono) == pytest.approx(at, abs=1.0)


@pytest.mark.fault(
    "journal and disk", "the clock is set back between failure and recovery", "no time is negative"
)
def test_a_recovery_over_a_clock_that_was_set_back_is_not_negative(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    ledger = Ledger(run.node())
    context = RunContext(run, run.node(), job_of(tmp_path, "train.py"), {}, FakeClock(), ledger)
    for event in (
        ev.LaunchIntended(t=4000.0, attempt=1, argv=(), reason="first"),
        ev.AttemptEnded(t=5000.0, attempt=1, exit_code=1),
        ev.LaunchIntended(t=1400.0, attempt=2, argv=(), reason="again"),
        ev.Progress(t=1410.0, attempt=2, step=1),
    ):
        ledger.emit(event)
    RecoveryReport(context).look(ledger.state)
    found = not_none(not_none(ledger.state.attempt).recovery)
    assert (found.after, found.total_s) == (1, 0.0)
    ledger.close()


@pytest.mark.fault(
    "journal and disk",
    "the clock is set back between two keepers",
    "replay keeps the order of the journal's lines",
)
def test_a_keeper_that_adopted_with_the_clock_set_back_comes_after_the_first_one(tmp_path: Path) -> None:
    """Order is that of the lines; a replay sorted the two lives into each other."""
    t = 1_795_000_000.0
    begun = (
        ev.RunStarted(t=t, run_id="run-1", name="job", mode="launched", host="box"),
        ev.KeeperStarted(t=t, pid=7, start_time=1.0, version="0"),
        ev.LaunchIntended(t=t + 1, attempt=1, argv=(), reason="first launch"),
        ev.AttemptStarted(t=t + 2, attempt=1, pid=9, start_time=1.0),
        ev.Progress(t=t + 9, attempt=1, step=4, loss=2.0),
    )
    back = t - HOUR_S
    adopted = (
        ev.KeeperStarted(t=back, pid=8, start_time=2.0, version="0", adopted=True),
        ev.Progress(t=back + 5, attempt=1, step=9, loss=1.0),
        ev.AttemptEnded(t=back + 9, attempt=1, exit_code=0),
    )
    run = run_in(tmp_path, *begun, *adopted)
    recording = record_of(run)
    assert recording.events == (*begun, *adopted)
    assert recording.end_t == t + 9
    reader = ReplayReader(recording, lambda: recording.end_t)
    assert reader.refresh().state.attempts == read_state(run.node().journal).attempts
    for at, launched in ((t, False), (t + 2, True), (t + 5, True)):
        earlier = ReplayReader(recording, partial(float, at)).refresh()
        assert bool(earlier.state.attempts) is launched
