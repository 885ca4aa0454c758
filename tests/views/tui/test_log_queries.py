"""What is typed to thin or search the log: what is wrong with it, whose lines it can name, and how far the search is."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from supervisor.run.paths import RunPaths
from supervisor.views.logs import reading as lc
from supervisor.views.logs import session as log_session
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.dialogs.prompts import AskLine
from tests.views.tui import recorded
from tests.views.tui.driving import drive, on_dashboard, pane, shown, until
from tests.views.tui.log_driving import counted, cursor, opened, page, settled


def attached(root: Path, text: str) -> RunPaths:
    """A run that is an attached log."""
    log = root / "train.log"
    run = recorded.observed(root / "run", log)
    log.write_text(text, encoding="utf-8")
    return run


def of_ranks(*ranks: int, lines: int = 400) -> str:
    return "".join(f"[rank{rank}]: step {step} loss 2.5\n" for step in range(lines) for rank in ranks)


@pytest.mark.parametrize(
    ("key", "typed", "why", "right"),
    [
        ("f", "node:x", "name nodes by their numbers", "step"),
        ("f", "rank:x", "rank:x: name ranks as r0 or r0-3,7", "r1"),
        ("slash", "/[bad/", "is not a valid regular expression", "/[bad]/"),
    ],
)
@pytest.mark.parametrize("screen", ["dashboard", "log"])
def test_a_prompt_says_what_is_wrong_and_keeps_the_text(
    tmp_path: Path, screen: str, key: str, typed: str, why: str, right: str
) -> None:
    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        if screen == "log":
            await opened(app, pilot)
        await pilot.press(key, *typed, "enter")
        await until(pilot, lambda: why in shown(app), "what is wrong")
        assert isinstance(app.screen, AskLine), "Enter keeps it open"
        assert app.screen.query_one(Input).value == typed
        await pilot.press(*["backspace"] * len(typed), *right)
        await until(pilot, lambda: why not in shown(app), "nothing wrong any more")
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, AskLine), "it closes")

    drive(recorded.healthy(tmp_path / "run"), play, size=(80, 24))


def test_ranks_of_an_attached_log_are_those_that_its_lines_name(tmp_path: Path) -> None:
    run = attached(tmp_path, of_ranks(0, 1, 2, 10))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await until(pilot, lambda: page(screen).ranks == ("0", "1", "2", "10"), "its ranks")
        for name in ("0", "1", "2", "10"):
            await pilot.press("right_square_bracket")
            await until(pilot, lambda: page(screen).query.who == {name}, name)  # noqa: B023 - called in this turn
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: page(screen).query.who == {"2"}, "one back")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: on_dashboard(app), "the dashboard")
        await pilot.press("right_square_bracket", "right_square_bracket")
        await until(pilot, lambda: app.dashboard.logs.query.who == {"1"}, "in the pane too")
        await pilot.press("f", *["backspace"] * 8, *"r7", "enter")
        await until(pilot, lambda: "this log has ranks 0-2,10" in pane(app, "log"), "which it has")

    drive(run, play, keeper=False)


def test_a_rank_behind_the_time_and_the_level_is_filtered_by(tmp_path: Path) -> None:
    stamp = "2026-11-20 10:00:00,123"
    lines = [f"{stamp} INFO [rank{n % 4}] step {n} loss 2.5\n" for n in range(4000)]
    lines[2002] = f"{stamp} WARNING [rank2] grad norm 31.5\n"
    lines[2003] = f"{stamp} WARNING [rank3] grad norm 30.5\n"
    run = attached(tmp_path, "".join(lines))

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("f", *"r2 level:warn", "enter")
        await until(pilot, lambda: "grad norm 31.5" in pane(app, "log"), "the warning")
        assert "grad norm 30.5" not in pane(app, "log")

    drive(run, play, keeper=False)


@pytest.mark.parametrize("typed", ["r2", "r2 loss"])
def test_of_a_log_that_names_no_rank_the_answer_to_a_filter_by_rank_says_so(
    tmp_path: Path, typed: str
) -> None:
    run = attached(tmp_path, "step 1 loss 2.5\n" * 100)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("f", *typed, "enter")
        await until(pilot, lambda: "the lines name no ranks" in page(screen).empty_why, "why")

    drive(run, play, keeper=False)


def test_what_is_found_so_far_is_said_until_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_session, "PATIENCE_S", -1.0)
    run, _ = counted(tmp_path / "run", lines=60_000)  # of several chunks

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        said: list[str] = []
        tell = app.dashboard.log_of_run._report

        def report(remark: lc.Remark) -> None:
            said.append(remark.text)
            tell(remark)

        monkeypatch.setattr(app.dashboard.log_of_run, "_report", report)
        await pilot.press("f", *"zzz", "enter")
        await until(pilot, lambda: "no line matches" in pane(app, "log"), "the end of it")
        assert said
        assert all("% searched" in text for text in said)
        await until(pilot, lambda: not app.dashboard.panes.notice.says, "no word of it stays")

    drive(run, play)


def test_a_search_finds_what_lies_below_where_nothing_is_above(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("right_square_bracket", "o", "g")
        await settled(pilot, lambda: cursor(screen) == "line 1 of the log", "the first line")
        await pilot.press("slash", *"line 15007 ", "enter")
        await settled(pilot, lambda: cursor(screen).startswith("line 15007 "), "the match below")
        await pilot.press("slash", *["backspace"] * 11, *"zzz", "enter")
        await settled(pilot, lambda: "not found" in shown(app), "that there is none at all")

    drive(run, play)
