"""The log pane: every line as plain text, filtered, searched, followed, folded."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from supervisor.run.paths import RunPaths
from supervisor.views.logs.merge import Row
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.shell.prompts import AskLine
from supervisor.views.tui.widgets.paint import TextStyle
from tests.diagnosis.launcher_logs import REPORT
from tests.tiers import first
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, plays, shown, until
from tests.views.tui.log_driving import opened, page


def rows(app: StokerApp) -> list[Row]:
    """What the pane was given to show."""
    page = app.dashboard.panes.log.page
    assert page is not None
    return list(page.rows)


@plays(recorded.healthy)
async def test_filter_by_rank_and_words(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    logs = app.dashboard.logs
    everything = len(rows(app))
    await pilot.press("f", *"r1 dataloader")
    await until(pilot, lambda: 0 < len(rows(app)) < 5, "shown while it is typed")
    assert "UserWarning" in pane(app, "log")
    await pilot.press("enter")
    assert str(logs.lines_query) == "rank 1 · “dataloader”"
    assert "rank 1 · “dataloader”" in pane(app, "log")
    await pilot.press("escape")
    await until(pilot, lambda: len(rows(app)) == everything, "all lines")
    await pilot.press("right_square_bracket")
    assert logs.lines_query.who == {"0"}
    await pilot.press("right_square_bracket")
    assert logs.lines_query.who == {"1"}
    await pilot.press("right_square_bracket")
    assert not logs.lines_query


@plays(recorded.healthy, size=(200, 50))
async def test_the_table_of_ranks_has_no_lines_of_an_earlier_attempt(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await pilot.press("3", "z")
    await until(pilot, lambda: "step  1840" in pane(app, "ranks"), "the newest lines")
    app.dashboard.logs.ask(lambda view: view.other_attempt(-1))
    await until(pilot, lambda: page(app.dashboard.logs).attempt == 1, "the attempt before")
    assert "step   212" not in pane(app, "ranks")
    assert "OutOfMemoryError" not in pane(app, "ranks")
    app.dashboard.logs.toggle_follow(on=True)
    await until(pilot, lambda: "step  1840" in pane(app, "ranks"), "the newest lines again")


def test_follow_and_freeze(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    for number in range(200):
        rec.say(0, f"line {number}")
    run = rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "line 199" in pane(app, "log"), "the newest line")
        await pilot.press("k")
        await until(pilot, lambda: not app.dashboard.logs.following, "the frozen log")
        assert "line 199" not in pane(app, "log")
        rec.say(0, "line 200")
        await until(pilot, lambda: "2 below" in pane(app, "log"), "the new line is counted")
        assert "line 200" not in pane(app, "log")
        await pilot.press("G")
        await until(pilot, lambda: "line 200" in pane(app, "log"), "the newest line")
        assert app.dashboard.logs.following
        rec.say(0, "line 201")
        await until(pilot, lambda: "line 201" in pane(app, "log"), "the followed line")
        await pilot.press("g")
        await until(pilot, lambda: "line 0 " in pane(app, "log"), "the oldest line")
        await pilot.press("space")
        await until(pilot, lambda: app.dashboard.logs.following, "following again")
        await opened(app, pilot)
        await until(pilot, lambda: "line 201" in shown(app), "the newest line of the log alone")

    drive(run, play)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("stoker-log")]


def reported(tmp_path: Path, more: int = 0) -> tuple[RunPaths, recorded.Recording]:
    """Rank 1 ran out of memory; torchrun says `more` of it, and ends with its own traceback."""
    rec = recorded.Recording(tmp_path / "run")
    rec.launch("first start")
    rec.steps(5, 200, every=5)
    rec.out_of_memory()
    for line in [*(f"shutting down, part {number}" for number in range(more)), *REPORT]:
        rec.say("agent", line)
    return rec.run, rec


def test_the_line_that_failed_is_kept_in_sight_until_a_person_scrolls(tmp_path: Path) -> None:
    run, rec = reported(tmp_path, more=40)
    rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        log = app.dashboard.panes.log
        await until(pilot, lambda: "torch.OutOfMemoryError" in pane(app, "log"), "the cause")
        assert "at the failure" in pane(app, "log")
        assert "part 39" not in pane(app, "log")
        marked = [row for row in log._rows if any(span.style is TextStyle.ROOT for span in row)]
        assert ["▌" in "".join(span.text for span in row) for row in marked] == [True]
        place = log.place()
        assert place is not None
        assert place.path is not None
        assert place.path.endswith("/1/stderr.log"), "L opens the logs there"
        await pilot.press("j")
        await until(pilot, lambda: "at the failure" not in pane(app, "log"), "a person reads on from there")
        assert " below ╮" in pane(app, "log")
        await pilot.press("G")
        await until(pilot, lambda: "at the end" in pane(app, "log"), "the newest line")
        assert app.dashboard.logs.following

    drive(run, play)


def quiet(root: Path) -> RunPaths:
    """A log that somebody else's run wrote until an hour ago."""
    return recorded.observed(root, root.parent / "train.log", is_quiet=True)


@pytest.mark.parametrize("make", first(1, [quiet, recorded.failed]))
def test_a_log_to_which_nothing_comes_is_not_followed(
    tmp_path: Path, make: Callable[[Path], RunPaths]
) -> None:
    run = make(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "at the end ╮" in pane(app, "log"), "where it stands")
        assert "Space" not in pane(app, "footer")
        await pilot.press("4", "k")
        await until(pilot, lambda: bool(re.search(r"\d below ╮", pane(app, "log"))), "a line further up")
        await until(pilot, lambda: "Space to the end" in pane(app, "footer"), "the way back")
        assert "frozen" not in pane(app, "log")
        await pilot.press("space")
        await until(pilot, lambda: "at the end ╮" in pane(app, "log"), "back")
        await opened(app, pilot)
        await until(pilot, lambda: "at the end ╮" in shown(app), "so where it is shown alone")
        await pilot.press("k")
        await until(pilot, lambda: "at the end ╮" not in shown(app), "a line further up")
        assert "frozen" not in shown(app)

    drive(run, play, size=(200, 50))


def test_a_new_attempt_is_followed_again(tmp_path: Path) -> None:
    run, rec = reported(tmp_path)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "▌torch.OutOfMemoryError" in pane(app, "log"), "the cause")
        rec.launch("restart")
        for number in range(60):
            rec.say(0, f"line {number}")
        await until(pilot, lambda: "line 59" in pane(app, "log"), "the new attempt's lines")

    drive(run, play)


@plays(recorded.healthy, size=(80, 24))
async def test_a_prompt_says_what_is_wrong_and_keeps_the_text(
    app: StokerApp, pilot: Pilot[None], run: RunPaths
) -> None:
    await pilot.press("f", *"node:x", "enter")
    await until(pilot, lambda: "name nodes by their numbers" in shown(app), "what is wrong")
    assert isinstance(app.screen, AskLine), "Enter keeps it open"
    assert app.screen.query_one(Input).value == "node:x"
    await pilot.press("escape", "slash", *"/(/")
    await until(pilot, lambda: "is not a valid regular expression" in shown(app), "what is wrong")


def test_ranks_of_an_attached_log_are_those_that_its_lines_name(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    run = recorded.observed(tmp_path / "run", log)
    lines = [f"[rank{rank}]: step {step} loss 2.5\n" for step in range(400) for rank in (0, 1, 2, 10)]
    log.write_text("".join(lines), encoding="utf-8")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await until(pilot, lambda: page(screen).ranks == ("0", "1", "2", "10"), "its ranks")
        for name in ("0", "1", "2", "10"):
            await pilot.press("right_square_bracket")
            await until(pilot, lambda: page(screen).query.who == {name}, name)  # noqa: B023 - called in this turn
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: page(screen).query.who == {"2"}, "one back")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: not screen.is_whole, "all panes")
        await pilot.press("right_square_bracket", "right_square_bracket")
        await until(pilot, lambda: app.dashboard.logs.lines_query.who == {"1"}, "in the pane too")
        await pilot.press("f", *["backspace"] * 8, *"r7", "enter")
        await until(pilot, lambda: "this log has ranks 0-2,10" in pane(app, "log"), "which it has")

    drive(run, play, keeper=False)
