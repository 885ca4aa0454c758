"""A recorded run: the same state at each moment as it was live, its clock, and the moments that a person types."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.run import events as ev
from supervisor.run.fold import fold
from supervisor.run.paths import RunPaths
from supervisor.run.state import RunState
from supervisor.views.model import replay as replaying
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.model.replay import (
    NothingRecorded,
    Recording,
    ReplayClock,
    ReplayReader,
    fitting_speed,
    next_fact,
    record_of,
)
from tests.views.replaying import Ticks
from tests.views.tui import recorded


def test_at_its_end_a_replay_shows_what_the_live_app_does(recording: Recording) -> None:
    played = ReplayReader(recording, lambda: recording.end_t).refresh()
    live = SnapshotReader(recording.run).refresh()
    assert played.state == live.state
    assert played.metrics == live.metrics
    assert played.series == live.series
    assert played.gpus == live.gpus


@settings(max_examples=25, deadline=None)
@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_any_way_to_a_moment_leads_to_the_same_state(recording: Recording, shares: list[float]) -> None:
    at = 0.0
    reader = ReplayReader(recording, lambda: at)
    for share in shares:
        at = recording.start_t + share * (recording.end_t - recording.start_t)
        shown = reader.refresh()
    state = RunState()
    for event in recording.events:
        if event.t <= at:
            state = fold(state, event)
    assert shown.state == state
    assert all(point.t <= at for point in shown.metrics["loss"])
    assert len(shown.metrics["loss"]) == sum(
        1 for t, stream, _ in recording.samples if t <= at and stream == "metrics"
    )


def test_the_clock_plays_stops_jumps_and_hastens() -> None:
    ours = Ticks()
    clock = ReplayClock(1000.0, 1600.0, speed=60, monotonic=ours)
    ours.t = 2.0
    assert clock.now() == 1120.0
    clock.toggle()
    ours.t = 50.0
    assert (clock.now(), clock.paused) == (1120.0, True)
    clock.toggle()
    clock.faster(1)
    ours.t = 51.0
    assert (clock.now(), clock.speed) == (1240.0, 120.0)
    clock.seek(5000.0)
    assert (clock.now(), clock.paused) == (1600.0, True)
    clock.toggle()
    assert (clock.now(), clock.paused) == (1000.0, False)


def test_the_clock_waits_until_it_is_seen_and_has_a_slowest_and_a_fastest_speed() -> None:
    ours = Ticks()
    clock = ReplayClock(1000.0, 2000.0, speed=50.0, monotonic=ours, waits=True)
    ours.t = 5.0
    assert clock.now() == 1000.0
    clock.begin()
    ours.t = 6.0
    assert (clock.now(), clock.paused) == (1050.0, False)
    speeds = [clock.speed for way in (1, *[-1] * 10, *[1] * 13) if clock.faster(way) is None]  # type: ignore[func-returns-value]
    down = [60.0, 30.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1]
    assert speeds == [*down, 0.1, 0.1, *down[-2::-1], 120.0, 300.0, 600.0, 3600.0, 3600.0]


@pytest.mark.parametrize(
    ("span_s", "speed"),
    [(0.5, 0.1), (13, 0.5), (30, 1), (2200, 60), (86_400, 3600), (604_800, 3600)],
)
def test_the_usual_speed_fits_the_length(span_s: float, speed: float) -> None:
    assert fitting_speed(span_s) == speed
    assert ReplayClock(0.0, span_s).speed == speed


def test_facts_are_met_one_by_one() -> None:
    facts = (10.0, 20.0, 30.0)
    assert next_fact(facts, 10.0, 1) == 20.0
    assert next_fact(facts, 9.9995, 1) == 20.0, "it is there already"
    assert next_fact(facts, 9.99, 1) == 10.0
    assert next_fact(facts, 30.0, 1) is None
    assert next_fact(facts, 21.0, -1) == 10.0
    assert next_fact(facts, 21.01, -1) == 20.0
    assert next_fact(facts, 11.01, -1) == 10.0
    assert next_fact(facts, 20.5, -1) == 10.0, "the fact just passed is not met again"
    assert next_fact(facts, 10.0, -1) is None


def test_an_empty_folder_cannot_be_played(tmp_path: Path) -> None:
    with pytest.raises(NothingRecorded, match="nothing was recorded"):
        record_of(RunPaths(tmp_path))


def test_a_keeper_is_there_from_its_start_until_it_leaves(tmp_path: Path) -> None:
    events: tuple[ev.Event, ...] = (
        ev.RunStarted(t=0.0, run_id="r", name="n", mode="launched", host="h"),
        ev.KeeperStarted(t=10.0, pid=7, start_time=1.0, version="1"),
        ev.KeeperLeft(t=20.0, why="held"),
        ev.KeeperStarted(t=30.0, pid=8, start_time=2.0, version="1"),
    )
    played = Recording(RunPaths(tmp_path), None, events, (), (), ())
    clock = Ticks()
    reader = ReplayReader(played, clock)
    for at, there in ((5.0, False), (15.0, True), (25.0, False), (35.0, True), (15.0, True), (25.0, False)):
        clock.t = at
        shown = reader.refresh()
        assert shown.keeper_alive is there
        assert reader.refresh() is shown, "the time stands still"
        clock.t = at + 1.0
        later = reader.refresh()
        assert (later.revision, later.recorded_t) == (shown.revision + 1, at + 1.0)
        assert later.state is shown.state, "nothing was recorded meanwhile"


def test_a_long_recording_begins_with_its_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rec = recorded.Recording(tmp_path / "run", gpus=0)
    rec.launch("first start")
    rec.steps(1, 400)
    run = rec.close()
    monkeypatch.setattr(replaying, "STREAM_BYTES", 4096)
    played = record_of(run)
    clock = Ticks()
    reader = ReplayReader(played, clock)
    for clock.t in (played.end_t, played.start_t, played.end_t):
        loss = reader.refresh().metrics["loss"]
        assert loss[0].weight > 1
    assert loss[-1].step == 400
    assert [point.t for point in loss] == sorted(point.t for point in loss)
