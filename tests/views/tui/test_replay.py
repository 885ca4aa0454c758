"""A replay shows what the app showed: the same state at each moment, at any pace, forward and back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from unittest.mock import Mock

from textual.pilot import Pilot

from supervisor.run.state import Finished
from supervisor.views.format import duration
from supervisor.views.model.replay import (
    Recording,
    ReplayClock,
)
from supervisor.views.tui.app import StokerApp, replay_app
from supervisor.views.tui.dashboard.playback import Playback
from supervisor.views.tui.shell.feeder import Answer
from supervisor.views.tui.shell.help import HelpScreen
from tests.views.replaying import Ticks
from tests.views.tui.driving import pane, requests, until
from tests.views.tui.still import text_of


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


def test_nothing_is_played_before_it_can_be_seen(recording: Recording) -> None:
    ours = Ticks()
    clock = ReplayClock(recording.start_t, recording.end_t, speed=60, monotonic=ours, waits=True)
    ours.t += 100.0
    assert clock.now() == recording.start_t, "loading the app took that long"
    assert not clock.paused
    app = replay_app(recording, clock)

    async def go() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            begun = f"0 s of {duration(recording.end_t - recording.start_t)}"
            await until(pilot, lambda: begun in pane(app, "replay"), "the first moment")

            def passes() -> bool:
                ours.t += 0.1
                return clock.now() > recording.start_t

            await until(pilot, passes, "time, once it is seen")

    asyncio.run(go())


def test_the_bar_follows_recorded_time(recording: Recording, no_app: None) -> None:
    ours = Ticks()
    clock = ReplayClock(100.0, 200.0, speed=2, monotonic=ours)
    playback = Playback(replace(recording, facts_t=(110.0, 190.0)), clock)
    panes, drawn = Mock(), Mock()
    playback.bar.repaint = drawn  # type: ignore[method-assign]
    playback.begin(panes, Mock())

    def bar(width: int = 60) -> str:
        (row,) = playback.bar.body(width, 1)
        return text_of([row])

    assert bar() == " ▶ replay 2× 00:01:40 ●━┿━━━━━━━━━━━━━━━┿━━ 0 s of 1 m 40 s "
    ours.t += 25.0
    assert bar() == " ▶ replay 2× 00:02:30 ━━┿━━━━━━━●━━━━━━┿━━ 50 s of 1 m 40 s "
    assert bar(50) == " ▶ replay 2× 00:02:30 ━┿━━●━━━┿━ 50 s of 1 m 40 s "
    assert bar(49) == " ▶ replay 2× 00:02:30           50 s of 1 m 40 s "
    playback.tick()
    assert (drawn.call_count, panes.offer.call_count) == (1, 0)
    for times in (1, 2):
        playback.action_play()
        assert panes.offer.call_count == times, "Space has another name"
    playback.action_play()
    drawn.reset_mock()
    playback.tick()
    assert not drawn.called, "time stands still"
    assert bar()[1] == "‖"
    for way, found in ((1, 190.0), (-1, 110.0)):
        playback.action_fact(way)
        assert clock.now() == found
        playback.action_fact(way)
    told = [call.args[0] for call in panes.tell.call_args_list]
    assert told == [Answer("no further fact", None), Answer("no earlier fact", None)]
    for way, now in ((1, 112.0), (-1, 110.0)):
        playback.action_scrub(way)
        assert clock.now() == now
    playback.seek(200.0)
    assert bar() == " ■ replay 2× 00:03:20 ━━┿━━━━━━━━━━━┿● 1 m 40 s of 1 m 40 s "


def test_keys_move_recorded_time_and_nothing_is_asked(recording: Recording) -> None:
    async def scenario(app: StokerApp, pilot: Pilot[None], clock: ReplayClock, ours: Ticks) -> None:
        def is_over() -> bool:
            snapshot = app.dashboard.snapshot
            return snapshot is not None and isinstance(snapshot.state.condition, Finished)

        await pilot.press("n")
        assert clock.now() > recording.start_t
        ours.t += 4.0
        await until(pilot, lambda: "step" in pane(app, "log"), "lines")
        clock.seek(recording.end_t)
        await until(pilot, is_over, "the end")
        assert "■" in pane(app, "replay")
        await pilot.press("left")
        assert clock.now() < recording.end_t
        clock.seek(recording.start_t)
        await until(pilot, lambda: not is_over(), "the past")
        await until(pilot, lambda: "step" not in pane(app, "log"), "its beginning")
        await pilot.press("space")
        assert clock.paused
        assert "‖" in pane(app, "replay")
        await pilot.press("greater_than_sign")
        assert "120×" in pane(app, "replay")
        for key in ("s", "r", "b", "K", "m", "e"):
            await pilot.press(key)
            assert "this is a replay" in pane(app, "notice")
        assert app.screen is app.dashboard
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        keys = [line.key for line in app.screen.lines if "←" in line.key.split() and "Ctrl" not in line.key]
        assert keys == ["←"], "back in recorded time alone"

    play(recording, scenario)
    assert requests(recording.run) == []
