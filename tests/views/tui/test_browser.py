"""The list of runs: what it shows, how it is filtered, and the way into a run and back."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from supervisor.run.events import RequestKind
from supervisor.run.index import find_run, known_runs, listed_names, listed_notes
from supervisor.run.ownership import Offer
from supervisor.run.paths import RunPaths
from supervisor.views.model.run_list import Scope, SortKey
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.pages.metrics import MetricsPage
from supervisor.views.tui.shell.feeder import Adopter
from supervisor.views.tui.shell.prompts import OfferScreen
from tests.views.tui import recorded
from tests.views.tui.driving import keeper_of, offered, pane, requests, shown, until

NOW = recorded.T0 + 9000


@pytest.fixture
def runs(tmp_path: Path) -> list[RunPaths]:
    """A failed, a held and a finished run; none has a keeper."""
    return [
        recorded.failed(tmp_path / "20261121-1412-brave-otter"),
        recorded.held(tmp_path / "20261121-1410-calm-crane"),
        recorded.succeeded(tmp_path / "20261120-0900-able-ant"),
    ]


def browse(
    runs: list[RunPaths],
    play: Callable[[StokerApp, Pilot[None]], Awaitable[None]],
    known: Callable[[], list[RunPaths]] | None = None,
    scope: Scope | None = None,
    continuer: Adopter | None = None,
) -> None:
    app = StokerApp(None, known=known or (lambda: runs), scope=scope, clock=lambda: NOW, continuer=continuer)

    async def scenario() -> None:
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: listed(app), "the list")
            await pilot.pause()
            await play(app, pilot)

    asyncio.run(scenario())
    assert "stoker-view-reader" not in [thread.name for thread in threading.enumerate()]


def listed(app: StokerApp) -> bool:
    return bool(app.browser and app.browser.panel.list and app.browser.panel.list.complete)


def test_enter_opens_and_escape_comes_back(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "✗ failed" in shown(app)
        await pilot.press("j", "j", "k", "k", "enter")
        await until(pilot, lambda: app.screen is not app.browser, "the dashboard")
        await until(pilot, lambda: app.dashboard.snapshot is not None, "the first snapshot")
        assert app.dashboard.snapshot is not None
        assert app.dashboard.snapshot.state.run_id == runs[0].run_id
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.browser, "the list again")
        await pilot.press("j", "enter")
        await until(pilot, lambda: app.screen is not app.browser, "another dashboard")

    browse(runs, play)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_picture(snap_compare: Any, runs: list[RunPaths], size: tuple[int, int]) -> None:
    app = StokerApp(None, known=lambda: runs, clock=lambda: NOW)

    async def settle(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: listed(app), "the list")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=settle)


def test_o_sorts_by_the_next_column_and_shift_o_the_other_way_round(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.browser is not None
        for key in [*list(SortKey)[1:], SortKey.NEWEST]:
            await pilot.press("o")
            await until(pilot, lambda key=key: f"3 of 3 · by {key} ╮" in shown(app), key)  # type: ignore[misc]
        await pilot.press("O")
        await until(pilot, lambda: "3 of 3 · by newest ▲ ╮" in shown(app), "oldest first")
        assert [row.run for row in app.browser.panel.rows] == runs[::-1]

    browse(runs, play)


def notice_of(app: StokerApp) -> str:
    """The line above the footer."""
    return shown(app).splitlines()[-2]


def test_a_run_is_deleted_and_brought_back(runs: list[RunPaths]) -> None:
    folder = runs[0].root.parent

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.browser is not None
        panel = app.browser.panel
        await pilot.press("slash", *"failure:code_error", "enter", "x", "n")
        assert panel.chosen is not None
        name = panel.chosen.run_id
        assert (folder / name).is_dir(), "only y is yes"
        await pilot.press("x", "y")
        await until(pilot, lambda: not (folder / name).exists(), "its folder to move")
        await until(pilot, lambda: "u brings it back" in notice_of(app), "what to do about it")
        assert "brings it back" not in shown(app).splitlines()[0], "no part of the list's frame"
        await until(pilot, lambda: not panel.rows, "the list without it")
        assert (folder / ".trash" / name).is_dir()
        await pilot.press("u")
        await until(pilot, lambda: bool(panel.rows), "the list with it again")
        assert (folder / name).is_dir()
        assert "u undo" not in shown(app)

    browse(runs, play, known=lambda: known_runs(folder, {"XDG_STATE_HOME": str(folder)}))


def test_any_number_of_runs_is_compared_each_in_its_own_hue(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.browser is not None
        panel = app.browser.panel
        await pilot.press("space", "space", "space", "j", "space", "j")
        assert panel.marked == runs[:2], "a second Space takes the mark away"
        hues = [panel.mark_of(run) for run in runs]
        assert [span.text for span in hues] == ["◆", "◆", " "]
        assert len({span.style for span in hues}) == 3
        await pilot.press("c")
        await until(pilot, lambda: app.screen is not app.browser, "the dashboard")
        await until(pilot, lambda: bool(app.dashboard.query("#metrics")), "the page")
        page = app.dashboard.query_one("#metrics", MetricsPage)
        await until(pilot, lambda: len(page.others) == 2, "the other runs' series")
        assert [other.run for other in page.others] == runs[:2]
        assert page.display

    browse(runs, play)


def test_a_run_that_is_over_is_given_a_name_and_a_note(
    runs: list[RunPaths], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = sorted(runs[0].root.rglob("*"))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.browser is not None
        await pilot.press("m", *"too wide", "enter")
        await until(pilot, lambda: "note: too wide" in shown(app), "the note below the list")
        await pilot.press("N", *"lr3", "enter")
        await until(pilot, lambda: "brave-otter · lr3" in shown(app), "the name")
        assert find_run("lr3", tmp_path, os.environ) == runs[0]
        await pilot.press("slash", *"wide", "enter")
        assert [row.run for row in app.browser.panel.rows] == [runs[0]]
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is not app.browser, "the dashboard")
        await until(pilot, lambda: " lr3" in pane(app, "header"), "the name in the header")
        await pilot.press("m", *"lr 3e-4", "enter")
        await until(pilot, lambda: "noted: lr 3e-4" in pane(app, "notice"), "the answer")
        await pilot.press("N", *"lr4", "enter")
        await until(pilot, lambda: " lr4" in pane(app, "header"), "another name")

    browse(runs, play)
    assert listed_names(os.environ)[str(runs[0].root)] == "lr4"
    assert listed_notes(os.environ)[str(runs[0].root)][1] == "lr 3e-4"
    assert sorted(runs[0].root.rglob("*")) == before, "nothing is written into its folder"


def test_the_next_attempt_is_started_from_the_list_after_a_question(runs: list[RunPaths]) -> None:
    started: list[RunPaths] = []
    continuer = Adopter(lambda _run: Offer(actions=("attempt 2 resumes from step 40",)), started.append)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "r continue" in shown(app)
        await pilot.press("r")
        await offered(app, pilot)
        assert "attempt 2 resumes from step 40" in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: "not continued" in shown(app), "Enter is no")
        assert not started
        await pilot.press("r")
        await offered(app, pilot)
        early = events.Key("y", "y")
        early.time -= 60
        app.post_message(early)
        await pilot.pause()
        assert isinstance(app.screen, OfferScreen), "typed before the question was on the screen"
        await pilot.press("y")
        await until(pilot, lambda: started == [runs[0]], "the start")
        await pilot.press("G")
        assert "r continue" not in shown(app), "this one succeeded"

    browse(runs, play, continuer=continuer)


def test_stopping_a_run_of_which_nothing_runs_warns_of_no_lost_steps(runs: list[RunPaths]) -> None:
    live = recorded.held(runs[0].root.parent / "20261121-1500-keen-kite")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "s stop" in shown(app), "the key")
        await pilot.press("s")
        said = "stop 20261121-1500-keen-kite? it waits for you; nothing is running"
        await until(pilot, lambda: said in shown(app), "the question")

    with keeper_of(live):
        browse([live, *runs], play)


def test_kill_in_the_list_stops_a_live_run_after_a_question_and_finds_nothing_else(
    runs: list[RunPaths],
) -> None:
    live = recorded.healthy(runs[0].root.parent / "20261121-1500-keen-kite")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "s stop" in shown(app)
        await pilot.press("j")
        await until(pilot, lambda: "s stop" not in shown(app), "the keys of a run that is over")
        await found_in_palette(app, pilot, "kill", "No matches found")
        await pilot.press("escape", "k")
        await found_in_palette(app, pilot, "kill", "stop the run gracefully")
        await pilot.press("enter")
        await until(
            pilot,
            lambda: f"stop {live.run_id}? steps since its last checkpoint may be lost" in shown(app),
            "the question",
        )
        assert not requests(live)
        await pilot.press("y")
        await until(pilot, lambda: bool(requests(live)), "the request")
        assert "stop: asked the supervisor process" in shown(app)

    with keeper_of(live):
        browse([live, *runs], play)
    assert [request.kind for request in requests(live)] == [RequestKind.STOP]


async def found_in_palette(app: StokerApp, pilot: Pilot[None], typed: str, wanted: str) -> None:
    """Type into the palette until it shows something."""
    assert app.screen is app.browser
    await pilot.press("colon")
    await until(pilot, lambda: app.screen is not app.browser, "the palette")
    await pilot.press(*("space" if letter == " " else letter for letter in typed))
    await until(pilot, lambda: wanted in shown(app), wanted)
