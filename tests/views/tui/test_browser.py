"""The list of runs: what it shows, how it is filtered, and the way into a run and back."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from supervisor.run.access.ownership import Offer
from supervisor.run.events import AttemptEnded, Diagnosed, RequestKind
from supervisor.run.index import find_run, known_runs, listed_names, listed_notes
from supervisor.run.journal import JournalWriter, read_state
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, FailureClass, Verdict
from supervisor.run.trash import KEPT_S, empty, throw_away
from supervisor.views.model.run_list import Scope, SortKey
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.dashboard import bars
from supervisor.views.tui.dialogs.help import HelpScreen
from supervisor.views.tui.dialogs.prompts import OfferScreen
from supervisor.views.tui.pages.metrics import MetricsPage
from supervisor.views.tui.request_client import Adopter
from tests.views.tui import recorded
from tests.views.tui.driving import command, drive, keeper_of, pane, requests, shown, until

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


def test_the_palette_works_in_the_list(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.browser is not None
        await pilot.press("colon")
        await until(pilot, lambda: app.screen is not app.browser, "the palette")
        await pilot.press(*"theme", "space", *"light")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await until(pilot, lambda: "light" in app.theme, "the light theme")
        await until(pilot, lambda: app.screen is app.browser, "the list again")

    browse(runs, play)


def test_help_lists_the_keys_of_the_list(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "? help" in shown(app)
        assert "Space mark" in shown(app)
        await pilot.press("question_mark")
        text = shown(app)
        assert "mark runs to compare" in text
        assert "dark, light, or safe" in text
        helped = app.screen
        assert isinstance(helped, HelpScreen)
        keys = {line.key: line.word for line in helped.lines}
        assert keys["?"] == "this help"
        assert keys["Enter"] == "open the run: its dashboard; Esc comes back here"
        assert keys["Space"] == "mark runs to compare, as many as you like; c compares them"
        assert keys["q d"] == "leave; no training is ended by it"
        assert "c" not in keys, "nothing is marked that could be compared with"
        assert "u" not in keys, "nothing was deleted"
        assert "Esc" not in keys, "nothing is filtered"
        assert {line.group for line in helped.lines} == {"the list of runs", "move"}
        await pilot.press("escape")
        top: object = app.screen
        assert top is app.browser

    browse(runs, play)


def test_filter_as_one_types(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"state:failed")
        assert app.browser is not None
        assert [row.run for row in app.browser.panel.rows] == runs[:2], "one waits for a decision"
        await pilot.press("enter", "escape")
        assert len(app.browser.panel.rows) == 3

    browse(runs, play)


def test_this_folders_runs_are_listed_and_one_key_shows_those_of_all(tmp_path: Path) -> None:
    here = recorded.failed(
        tmp_path / "a-folder-with-a-long-name-on-purpose" / "here" / "20261121-1412-brave-otter"
    )
    there = recorded.held(tmp_path / "there" / "20261121-1410-calm-crane")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.browser is not None
        panel = app.browser.panel
        assert [found.run for found in panel.rows] == [here]
        assert f"{str(here.root.parent)[-40:]} · 1 in other folders (a: all)" in shown(app)
        await pilot.press("a")
        await until(pilot, lambda: [found.run for found in panel.rows] == [here, there], "the runs of all")
        assert "in all folders" in shown(app)
        await pilot.press("a")
        await until(pilot, lambda: [found.run for found in panel.rows] == [here], "the runs of this folder")

    browse([here, there], play, scope=Scope(here.root.parent))


def test_without_runs_elsewhere_there_is_nothing_to_widen(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("a")
        assert "other folders" not in shown(app)
        assert "all folders" not in shown(app)

    browse(runs, play, scope=Scope(runs[0].root.parent))


def test_empty_list_teaches() -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "stoker run --nproc-per-node 2 train.py" in shown(app)
        await pilot.press("enter", "slash", "escape", "q")

    browse([], play)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_picture(snap_compare: Any, runs: list[RunPaths], size: tuple[int, int]) -> None:
    app = StokerApp(None, known=lambda: runs, clock=lambda: NOW)

    async def settle(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: listed(app), "the list")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=settle)


def test_watched_run_says_how_to_supervise(tmp_path: Path) -> None:
    run = recorded.observed(tmp_path / "run", tmp_path / "train.log")
    writer = JournalWriter(run.node().journal)
    writer.append(AttemptEnded(t=recorded.T0 + 20, attempt=1, exit_code=1))
    verdict = Verdict(
        failure=FailureClass.CODE_ERROR,
        reason=None,
        confidence=0.95,
        rank=0,
        ranks=(0,),
        node=None,
        title="NameError: name 'los' is not defined",
        cause=None,
        consequences=(),
        advice=(),
        action=Action.STOP,
        fingerprint="code_error:NameError",
    )
    writer.append(Diagnosed(t=recorded.T0 + 21, attempt=1, verdict=verdict))
    writer.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        card = pane(app, "card")
        assert "stoker only watches this" in card
        assert "to supervise it: stoker run" in card
        assert "policy" not in card

    drive(run, play)


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


def test_a_message_goes_after_a_while(runs: list[RunPaths], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "ANSWER_S", 0.2)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await until(pilot, lambda: "b does nothing here" in notice_of(app), "what the key does")
        await until(pilot, lambda: not notice_of(app).strip(), "an empty line")

    browse(runs, play)


def test_the_cursor_stays_where_a_run_was_deleted_and_comes_back_from_a_filter(runs: list[RunPaths]) -> None:
    folder = runs[0].root.parent

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.browser is not None
        panel = app.browser.panel
        await pilot.press("G")
        last = panel.chosen
        await pilot.press("slash", *"crane", "escape")
        assert panel.chosen == last
        before = panel.rows[-2].run
        await pilot.press("x", "y")
        await until(pilot, lambda: len(panel.rows) == 2, "the list without it")
        assert (panel.cursor, panel.chosen) == (1, before), "not back to the first"

    browse(runs, play, known=lambda: known_runs(folder, {"XDG_STATE_HOME": str(folder)}))


@pytest.mark.parametrize("keys", [("escape",), ("enter", "escape"), ("enter", "escape", "escape")])
def test_a_filter_that_matches_nothing_leaves_the_cursor_on_its_run(
    runs: list[RunPaths], keys: tuple[str, ...]
) -> None:
    """Its first letters match other runs."""

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.browser is not None
        panel = app.browser.panel
        await pilot.press("j")
        assert panel.chosen == runs[1]
        await pilot.press("slash", *"ant-eater", *keys)
        assert panel.query_text == ""
        assert (panel.chosen, panel.cursor) == (runs[1], 1)

    browse(runs, play)


def test_a_field_that_there_is_none_of_keeps_the_prompt_open(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"nme:x", "enter")
        assert app.screen is not app.browser
        assert "nme:x: no such field" in shown(app)
        await pilot.press("escape")
        assert app.browser is not None
        assert len(app.browser.panel.rows) == 3

    browse(runs, play)


def test_a_run_that_may_live_is_not_deleted(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"state:no_keeper", "enter", "x", "y")
        await until(pilot, lambda: "its ranks may live" in shown(app), "the refusal")

    browse(runs, play)
    assert all(run.root.is_dir() for run in runs)


def test_trash_is_emptied_after_a_week_and_only_of_runs(runs: list[RunPaths]) -> None:
    done = next(run for run in runs if read_state(run.node().journal).is_over)
    folder = done.root.parent
    thrown = throw_away(done)
    (folder / ".trash" / "precious").mkdir()
    assert empty(folder, now=time.time() + KEPT_S - 60) == 0
    assert empty(folder, now=time.time() + KEPT_S + 60) == 1
    assert not thrown.root.exists()
    assert (folder / ".trash" / "precious").is_dir()


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


def test_the_palette_compares_the_chosen_run_with_a_named_one(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await command(app, pilot, "compare")
        await until(pilot, lambda: "type compare and a run's name" in shown(app), "how")
        await pilot.press("colon", *"compare", "space", *"crane")
        await until(pilot, lambda: shown(app).partition("commands ─")[2].count("crane") >= 2, "the command")
        await pilot.press("enter")
        await until(pilot, lambda: app._dashboard is not None, "the dashboard")
        await until(pilot, lambda: bool(app.dashboard.query("#metrics")), "the page")
        page = app.dashboard.query_one("#metrics", MetricsPage)
        await until(pilot, lambda: [other.run for other in page.others] == [runs[1]], "the other's series")

    browse(runs, play)


def test_enter_opens_one_run_whatever_is_marked(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("space")
        assert "c compare" in shown(app), "from one mark on"
        await pilot.press("c")
        assert "one run is marked" in shown(app)
        await pilot.press("j", "space")
        assert "one run is marked" not in shown(app), "what was reported before another key"
        await pilot.press("j", "enter")
        await until(pilot, lambda: app.screen is not app.browser, "the dashboard")

    browse(runs, play)


def named(run: RunPaths, name: str) -> None:
    """As if it had been started with ``--name``."""
    text = json.loads(run.run_json.read_text(encoding="utf-8"))
    text["job"]["origins"] = [
        *text["job"].get("origins", []),
        ["run.name", "train", "default"],
        ["run.name", name, "flag --name"],
    ]
    run.run_json.write_text(json.dumps(text), encoding="utf-8")


def test_a_given_name_stands_in_the_list_and_in_the_legend_of_a_comparison(runs: list[RunPaths]) -> None:
    named(runs[1], "warmup 200")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "calm-crane · warmup 200" in shown(app)
        assert "20261121-1412-brave-otter" in shown(app), "its script's name is no name of its own"
        await pilot.press("j")
        assert "20261121-1410-calm-crane · train.py" in shown(app), "its whole id"
        await pilot.press("space", "k", "c")
        await until(pilot, lambda: "b warmup 200" in shown(app), "the legend")

    browse(runs, play)


@pytest.mark.parametrize(
    ("typed", "sort"),
    [("sort loss", SortKey.LOSS), ("sort dur", SortKey.DURATION), ("sort name", SortKey.NAME)],
)
def test_the_palette_sorts_the_list_by_what_is_named(runs: list[RunPaths], typed: str, sort: SortKey) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await found_in_palette(app, pilot, typed, f"sort {sort}")
        await pilot.press("enter")
        await until(pilot, lambda: f"by {sort}" in shown(app), "the order")

    browse(runs, play)


def test_a_key_and_a_typed_direction_reverse_the_order(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.browser is not None
        panel = app.browser.panel
        newest = [row.run for row in panel.rows]
        await pilot.press("O")
        assert [row.run for row in panel.rows] == newest[::-1]
        assert "by newest ▲" in shown(app)
        await pilot.press("o")
        assert not panel.reverse, "another column begins in its usual order"
        await found_in_palette(app, pilot, "sort loss desc", "loss desc")
        await pilot.press("enter")
        await until(pilot, lambda: "best▼" in shown(app), "the arrow in the column's heading")
        losses = [row.state.best_loss or 0.0 for row in panel.rows]
        assert losses == sorted(losses, reverse=True)

    browse(runs, play)


def test_a_run_is_named_from_the_list(
    runs: list[RunPaths], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("N", *"lr3", "enter")
        await until(pilot, lambda: "brave-otter · lr3" in shown(app), "the name")
        assert find_run("lr3", tmp_path, os.environ) == runs[0]
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is not app.browser, "the dashboard")
        await until(pilot, lambda: " lr3" in pane(app, "header"), "the name in the header")
        await pilot.press("N", *"lr4", "enter")
        await until(pilot, lambda: " lr4" in pane(app, "header"), "another name")

    browse(runs, play)
    assert listed_names(os.environ)[str(runs[0].root)] == "lr4"


def test_a_run_that_is_over_is_given_a_note(
    runs: list[RunPaths], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = sorted(runs[0].root.rglob("*"))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("m", *"too wide", "enter")
        await until(pilot, lambda: "note: too wide" in shown(app), "the note below the list")
        await pilot.press("slash", *"wide", "enter")
        assert app.browser is not None
        assert [row.run for row in app.browser.panel.rows] == [runs[0]]
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is not app.browser, "the dashboard")
        await until(pilot, lambda: app.dashboard.snapshot is not None, "the run")
        await pilot.press("m", *"lr 3e-4", "enter")
        await until(pilot, lambda: "noted: lr 3e-4" in pane(app, "notice"), "the answer")

    browse(runs, play)
    assert listed_notes(os.environ)[str(runs[0].root)][1] == "lr 3e-4"
    assert sorted(runs[0].root.rglob("*")) == before, "nothing is written into its folder"


def test_the_next_attempt_is_started_from_the_list_after_a_question(runs: list[RunPaths]) -> None:
    started: list[RunPaths] = []
    continuer = Adopter(lambda _run: Offer(actions=("attempt 2 resumes from step 40",)), started.append)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "r continue" in shown(app)
        await pilot.press("r")
        await until(
            pilot, lambda: isinstance(app.screen, OfferScreen) and app.screen.is_shown, "the question"
        )
        assert "attempt 2 resumes from step 40" in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: "not continued" in shown(app), "Enter is no")
        assert not started
        await pilot.press("r")
        await until(
            pilot, lambda: isinstance(app.screen, OfferScreen) and app.screen.is_shown, "the question"
        )
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


def test_the_palette_takes_what_to_filter_by(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await command(app, pilot, "filter state:failed")
        await until(pilot, lambda: "2 of 3" in shown(app), "the filter")
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is not app.browser, "the dashboard")
        await until(pilot, lambda: "lines · at the " in pane(app, "log"), "the log")
        await command(app, pilot, "search Raised")
        await until(pilot, lambda: "/Raised" in pane(app, "log"), "the search")
        await command(app, pilot, "filter r0")
        await until(pilot, lambda: "log · rank 0" in pane(app, "log"), "the filter")

    browse(runs, play)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (recorded.held, "it waits for you; nothing is running"),
        (recorded.backing_off, "it waits for its next attempt; nothing is running"),
        (recorded.healthy, "steps since its last checkpoint may be lost"),
    ],
)
def test_stopping_a_run_of_which_nothing_runs_warns_of_no_lost_steps(
    runs: list[RunPaths], record: Callable[[Path], RunPaths], said: str
) -> None:
    live = record(runs[0].root.parent / "20261121-1500-keen-kite")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "s stop" in shown(app), "the key")
        await pilot.press("s")
        await until(pilot, lambda: f"stop 20261121-1500-keen-kite? {said}" in shown(app), "the question")

    with keeper_of(live):
        browse([live, *runs], play)


def test_what_was_reported_of_a_stop_goes_when_the_run_has_ended(
    runs: list[RunPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "ANSWER_S", 3600.0)
    live = recorded.healthy(runs[0].root.parent / "20261121-1500-keen-kite")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "s stop" in shown(app), "the key")
        await pilot.press("s")
        await until(pilot, lambda: "stop 20261121-1500-keen-kite?" in shown(app), "the question")
        await pilot.press("y")
        await until(pilot, lambda: "stop: asked the supervisor process" in shown(app), "the answer")
        keeper.close()
        await until(pilot, lambda: "stop: asked" not in shown(app), "no more of it")

    with ExitStack() as keeper:
        keeper.enter_context(keeper_of(live))
        browse([live, *runs], play)


def test_kill_in_the_list_stops_a_live_run_after_a_question_and_finds_nothing_else(
    runs: list[RunPaths],
) -> None:
    live = recorded.healthy(runs[0].root.parent / "20261121-1500-keen-kite")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert "s stop" in shown(app)
        await pilot.press("j")
        await until(pilot, lambda: "s stop" not in shown(app), "the keys of a run that is over")
        await found_in_palette(app, pilot, "kill", "no command named kill here")
        await pilot.press("escape", "k")
        await found_in_palette(app, pilot, "kill", "stop the run gracefully")
        await pilot.press("enter")
        await until(pilot, lambda: "stop 20261121-1500-keen-kite?" in shown(app), "the question")
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


def test_a_run_is_played_from_the_list_and_esc_comes_back(runs: list[RunPaths]) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        await until(pilot, lambda: app.screen is not app.browser, "the replay")
        await until(pilot, lambda: "▶ replay" in shown(app), "its bar")
        assert app.dashboard.playback is not None
        await pilot.press("space")
        await until(pilot, lambda: "‖ replay" in shown(app), "the pause")
        assert "Esc to the list" in shown(app)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.browser, "the list again")
        runs[0].node().journal.write_bytes(b"")
        await pilot.press("p")
        await until(pilot, lambda: "nothing was recorded here" in shown(app), "why not")

    browse(runs, play)
