"""A replay shows what the app showed: the same state at each moment, at any pace, forward and back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from supervisor.cli.main import main
from supervisor.run.fold import fold
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished, RunState
from supervisor.views.reader import SnapshotReader
from supervisor.views.replay import (
    NothingRecorded,
    Recording,
    ReplayClock,
    ReplayReader,
    next_fact,
    record_of,
)
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.terminal import replay_app
from tests.tui import recorded
from tests.tui.driving import pane, requests, until


class Ticks:
    """Our own clock, moved by hand."""

    def __init__(self) -> None:
        self.t = 0.0

    def __call__(self) -> float:
        return self.t


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record_of(recorded.succeeded(tmp_path_factory.mktemp("runs") / "20261121-1412-brave-otter"))


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


def test_facts_are_met_one_by_one() -> None:
    facts = (10.0, 20.0, 30.0)
    assert next_fact(facts, 10.0, 1) == 20.0
    assert next_fact(facts, 30.0, 1) is None
    assert next_fact(facts, 20.5, -1) == 10.0, "the fact just passed is not met again"
    assert next_fact(facts, 10.0, -1) is None


def test_an_empty_folder_cannot_be_played(tmp_path: Path) -> None:
    with pytest.raises(NothingRecorded, match="nothing was recorded"):
        record_of(RunPaths(tmp_path))


@pytest.mark.parametrize("speed", ["0", "-1x", "fast", "1e9"])
def test_bad_speed_is_one_line(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", f"--speed={speed}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def play(
    recording: Recording, scenario: Callable[[StokerApp, Pilot[None], ReplayClock, Ticks], Awaitable[None]]
) -> None:
    ours = Ticks()
    clock = ReplayClock(recording.start_t, recording.end_t, speed=60, monotonic=ours)
    app = replay_app(recording, clock)

    async def go() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.dashboard.snapshot is not None, "the first moment")
            await scenario(app, pilot, clock, ours)

    asyncio.run(go())
    assert "stoker-view-reader" not in [thread.name for thread in threading.enumerate()]


def test_keys_move_recorded_time(recording: Recording) -> None:
    async def scenario(app: StokerApp, pilot: Pilot[None], clock: ReplayClock, ours: Ticks) -> None:
        await pilot.press("n")
        assert clock.now() > recording.start_t
        ours.t += 4.0
        await until(
            pilot,
            lambda: app.dashboard.snapshot is not None and bool(app.dashboard.snapshot.metrics["loss"]),
            "the loss",
        )
        early = len(app.dashboard.snapshot.metrics["loss"]) if app.dashboard.snapshot else 0
        clock.seek(recording.end_t)
        await until(
            pilot,
            lambda: (
                app.dashboard.snapshot is not None
                and isinstance(app.dashboard.snapshot.state.condition, Finished)
            ),
            "the end",
        )
        assert "■" in pane(app, "replay")
        await pilot.press(*["left"] * 40)
        await until(
            pilot,
            lambda: (
                app.dashboard.snapshot is not None
                and not isinstance(app.dashboard.snapshot.state.condition, Finished)
            ),
            "the past",
        )
        await pilot.press("space")
        assert clock.paused
        assert "‖" in pane(app, "replay")
        await pilot.press("greater_than_sign")
        assert "120×" in pane(app, "replay")
        assert early > 0

    play(recording, scenario)


def test_the_story_is_told_once_and_nothing_is_asked(recording: Recording) -> None:
    async def scenario(app: StokerApp, pilot: Pilot[None], clock: ReplayClock, ours: Ticks) -> None:
        clock.seek(recording.end_t)
        await until(pilot, lambda: "succeeded" in pane(app, "log"), "the story")
        clock.seek(recording.start_t)
        await until(pilot, lambda: "succeeded" not in pane(app, "log"), "its beginning")
        clock.seek(recording.end_t)
        await until(pilot, lambda: "succeeded" in pane(app, "log"), "the story again")
        assert pane(app, "log").count("succeeded") == 1
        await pilot.press("s", "r", "b", "K", "m", "e")
        assert app.screen is app.dashboard

    play(recording, scenario)
    assert requests(recording.run) == []
