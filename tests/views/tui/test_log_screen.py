"""The log screen: opened, moved in, searched, filtered, followed, copied from, and left."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from supervisor.run.series import METRICS, SeriesWriter
from supervisor.views.logs import reading as lc
from supervisor.views.logs.reading import LogAt
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.charts.live import LossPanel
from supervisor.views.tui.dashboard.panes import Panes
from tests.views.tui import recorded
from tests.views.tui.driving import drive, on_dashboard, shown, until
from tests.views.tui.log_driving import counted, cursor, opened, page, settled


def test_nothing_is_painted_on_a_dashboard_that_the_log_covers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, rec = counted(tmp_path / "run", lines=100)
    painted: list[Panes] = []
    shows = Panes.show

    def show(panes: Panes) -> None:
        painted.append(panes)
        shows(panes)

    monkeypatch.setattr(Panes, "show", show)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await settled(pilot, lambda: "line 100" in shown(app), "the last line")
        made = app.dashboard.logs.page
        painted.clear()
        for number in range(3):
            rec.say(0, f"beneath the log {number}")
        await until(pilot, lambda: "beneath the log 2" in shown(app), "the lines")
        assert app.dashboard.logs.page is made, "the pane does not read what nobody sees"
        known = app.dashboard.snapshot
        series = SeriesWriter(run.node().series)
        series.append(METRICS, rec.t, "job", 1, {"step": 1, "loss": 2.0})
        series.close()
        await until(pilot, lambda: app.dashboard.snapshot is not known, "the loss")
        assert not painted, "Textual would compose the log screen again for each"
        screen.dismiss(None)
        await until(pilot, lambda: app.screen is app.dashboard, "the dashboard")
        await until(pilot, lambda: "beneath the log 2" in shown(app), "the line in the pane")
        assert painted

    drive(run, play)


def test_opens_on_the_newest_line_and_follows(tmp_path: Path) -> None:
    run, rec = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await settled(pilot, lambda: "line 30000" in shown(app), "the last line")
        assert page(screen).following
        rec.say(0, "a new line")
        await settled(pilot, lambda: "a new line" in shown(app), "the followed line")
        await pilot.press("k")
        await settled(pilot, lambda: not page(screen).following, "the frozen page")
        rec.say(0, "another line")
        seen = page(screen).size_bytes
        rec.say(0, "and one more")
        await settled(pilot, lambda: page(screen).size_bytes > seen, "its bytes")
        assert "another line" not in shown(app), "what is read does not run away"
        await pilot.press("G")
        await settled(pilot, lambda: "and one more" in shown(app), "the newest line")
        assert page(screen).following

    drive(run, play)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("stoker-log")]


def test_moves_to_any_line(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("right_square_bracket", "o", "g")
        await settled(pilot, lambda: cursor(screen) == "line 1 of the log", "the first line")
        await settled(pilot, lambda: page(screen).line_count == 30_000, "the count of one log")
        await pilot.press("colon", *"12345", "enter")
        await settled(pilot, lambda: cursor(screen) == "line 12345 of the log", "line 12 345")
        assert "line 12 345 of 30 000" in shown(app)
        await pilot.press("pagedown")
        await settled(pilot, lambda: page(screen).numbers[0] == 12345 - 18 + 35, "a page down, one row kept")
        await pilot.press("pageup")
        await settled(pilot, lambda: page(screen).numbers[0] == 12345 - 18, "and up again")
        await pilot.press("colon", *"99999", "enter")
        await settled(pilot, lambda: "has 30000 lines" in shown(app), "the remark")
        await pilot.press("colon", *"nonsense", "enter")
        await settled(pilot, lambda: "give a line's number" in shown(app), "the remark")

    drive(run, play)


@pytest.mark.parametrize(("typed", "number"), [("step 1200", 1200), ("step 1,001", 1010)])
def test_the_log_page_goes_to_a_step_or_the_nearest_later_one(
    tmp_path: Path, typed: str, number: int
) -> None:
    run, rec = counted(tmp_path / "run", 10)
    for step in range(0, 3000, 10):
        rec.say(0, f"step {step} loss {2.5 - step / 10_000:.4f} lr 0.0001")
        rec.say(0, "some other line 99999")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("colon", *("space" if letter == " " else letter for letter in typed), "enter")
        await settled(pilot, lambda: cursor(screen).startswith(f"step {number} "), "the line")
        await pilot.press("colon", *("space" if letter == " " else letter for letter in "step 9000"), "enter")
        await settled(pilot, lambda: "no line names step 9000 or a later one" in shown(app), "the remark")

    drive(run, play)


def test_the_cursor_stays_on_its_line_when_the_terminal_gets_lower_and_higher(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("right_square_bracket", "o", "g")
        await settled(pilot, lambda: cursor(screen) == "line 1 of the log", "the first line")
        await pilot.press(*["j"] * 30)
        assert cursor(screen) == "line 31 of the log"
        for height in (20, 12, 40):
            await pilot.resize_terminal(120, height)
            await settled(pilot, lambda: len(page(screen).rows) == height - 4, "so many rows")  # noqa: B023
            assert cursor(screen) == "line 31 of the log"

    drive(run, play)


def test_search_counts_and_goes_both_ways(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("slash", *"error", "enter")
        await settled(pilot, lambda: "30 of 30" in shown(app), "the newest match and the count")
        await settled(pilot, lambda: "n ↑ older  N ↓ newer" in shown(app), "where its keys lead")
        assert cursor(screen).startswith("line 29007 ")
        await pilot.press("n")
        await settled(pilot, lambda: "29 of 30" in shown(app), "an older one")
        assert cursor(screen).startswith("line 28007 ")
        await pilot.press("N")
        await settled(pilot, lambda: "30 of 30" in shown(app), "a newer one")
        await pilot.press("N")
        await settled(pilot, lambda: "/error: 1 of 30" in shown(app), "on at the other end")
        assert "past the newest match: continued at the oldest" in shown(app)
        await pilot.press("escape", "g", "slash", *"error", "enter")
        await settled(pilot, lambda: "n ↓ newer  N ↑ older" in shown(app), "down from the first line")
        await pilot.press("n")
        await settled(pilot, lambda: "/error: 2 of 30" in shown(app), "down")
        await pilot.press("escape", "G", "slash", *"/line 1?5 /", "enter")
        await settled(pilot, lambda: "2 of 2" in shown(app), "an expression")
        await pilot.press("escape", "slash", *"/(/")
        await settled(pilot, lambda: "missing )" in shown(app), "what is wrong with it")

    drive(run, play)


def test_esc_gives_up_what_is_being_looked_for_before_it_leaves(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        screen.status.say(lc.Remark("none so far, 12% searched; Esc gives up"))
        await pilot.press("escape")
        assert app.screen is screen
        assert not screen.status.is_looking
        await settled(pilot, lambda: not page(screen).following, "it stands still")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.dashboard, "the dashboard")

    drive(run, play)


def test_a_line_that_the_filter_leaves_out_leads_to_the_next_kept_one(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("right_square_bracket", "o")
        await settled(pilot, lambda: page(screen).line_count == 30_000, "the count of one log")
        await pilot.press("f", *"error", "enter")
        await settled(pilot, lambda: "30 of 30 001 lines" in shown(app), "the count")
        await pilot.press("colon", *"12000", "enter")
        note = "that line is filtered out: here is the nearest that is kept"
        await settled(pilot, lambda: cursor(screen).startswith("line 12007 ") and note in shown(app), note)
        await pilot.press("k", "colon", *"29999", "enter")
        await settled(pilot, lambda: cursor(screen).startswith("line 29007 ") and note in shown(app), note)
        await pilot.press("colon", *"15007", "enter")
        await settled(pilot, lambda: cursor(screen).startswith("line 15007 "), "a line that it keeps")

    drive(run, play)


def test_ranks_are_one_log_and_each_its_own(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await settled(pilot, lambda: "0-1 ×2" in shown(app), "the folded lines")
        assert "ranks 0-1, merged by arrival" in shown(app)
        await pilot.press("right_square_bracket", "right_square_bracket")
        await settled(pilot, lambda: page(screen).query.who == {"1"}, "rank 1")
        assert "×2" not in shown(app)
        await pilot.press("f", *"dataloader", "enter")
        await settled(pilot, lambda: len(page(screen).rows) == 1, "the warning")
        await pilot.press("left_parenthesis")
        await settled(pilot, lambda: page(screen).attempt == 1, "the attempt before")

    drive(run, play)


def test_failure_and_chart_and_back(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("F")
        await settled(pilot, lambda: cursor(screen).startswith("torch.OutOfMemoryError"), "the cause")
        assert page(screen).attempt == 1
        await pilot.press("escape")
        await until(pilot, lambda: on_dashboard(app), "the dashboard")
        screen = await opened(app, pilot, LogAt(attempt=2, step=1000.0))
        await settled(pilot, lambda: cursor(screen).startswith("step  1000 "), "the step's line")
        await pilot.press("c")
        await until(pilot, lambda: on_dashboard(app), "the dashboard")
        await pilot.pause()
        assert app.focused is app.dashboard.query_one("#loss", LossPanel)

    drive(run, play)


def test_copy_by_keys_and_by_mouse(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run", 100)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await settled(pilot, lambda: "line 100 " in shown(app), "the log")
        await pilot.press("k", "V", "k", "k", "y")
        await settled(pilot, lambda: "3 lines copied" in shown(app), "the copy")
        assert app.clipboard == "line 97 of the log\nline 98 of the log\nline 99 of the log"
        panel = screen.log_page
        y = panel.region.y + 3
        await pilot.mouse_down(offset=(20, y))
        await pilot._post_mouse_events([events.MouseMove], offset=(20, y + 1), button=1)
        await pilot.mouse_up(offset=(20, y + 1))
        await pilot.press("y")
        await settled(pilot, lambda: "2 lines copied" in shown(app), "the copy")
        assert app.clipboard.count("\n") == 1
        await pilot.press("slash")
        await settled(pilot, lambda: "lines copied" not in shown(app), "no more of it during a search")

    drive(run, play)


def test_survives_what_happens_to_the_file(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run", 500)
    path = run.node().attempt(1).root / f"{recorded.TREE}/0/stdout.log"

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await opened(app, pilot)
        await settled(pilot, lambda: "line 500 " in shown(app), "the log")
        path.write_bytes(b"cut short\n")
        await settled(pilot, lambda: "cut short" in shown(app) and "read again" in shown(app), "the cut log")
        path.rename(path.with_suffix(".old"))
        path.write_bytes(b"rotated in\n")
        await settled(pilot, lambda: "rotated in" in shown(app), "the new file")
        path.unlink()
        await settled(pilot, lambda: "was removed" in shown(app), "the remark")
        assert "rotated in" in shown(app), "what was open is still shown"
        path.write_bytes(b"back again\n")
        await settled(pilot, lambda: "back again" in shown(app), "the file that came back")

    drive(run, play)


def test_wheel_wrap_and_small_terminal(tmp_path: Path) -> None:
    rec = recorded.Recording(tmp_path / "run", ranks=1)
    rec.launch("first start")
    for number in range(60):
        rec.say(0, f"line {number} " + "words " * 40 + f"end{number}")
    run = rec.close()

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await settled(pilot, lambda: "line 59 " in shown(app), "the log")
        assert "end59" not in shown(app)
        await pilot.press("w")
        await settled(pilot, lambda: "end59" in shown(app), "the wrapped line")
        screen.log_page.post_message(
            events.MouseScrollUp(screen.log_page, 5, 3, 0, -1, 0, False, False, False)
        )
        await settled(pilot, lambda: not page(screen).following, "the frozen page")
        for width, height in ((20, 6), (200, 50), (80, 24)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
        await pilot.press("g")
        await settled(pilot, lambda: "line 0 " in shown(app) or "attempt 1" in shown(app), "the beginning")

    drive(run, play, size=(80, 24))
