"""The log shown alone: opened, moved in, searched, filtered, followed, copied from, and left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from textual.app import App, SuspendNotSupported
from textual.pilot import Pilot

from supervisor.run.paths import RunPaths
from supervisor.views.logs import reading as lc
from supervisor.views.logs.reading import LogAt
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.charts.live import LossPanel
from supervisor.views.tui.pages import log_pane
from supervisor.views.tui.shell import external_editor as outside
from tests.views.tui import recorded
from tests.views.tui.driving import drive, plays, shown, until
from tests.views.tui.log_driving import counted, cursor, opened, page, settled


def test_moves_to_any_line(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("f", *"stream:stdout", "enter", "g")
        await settled(pilot, lambda: cursor(screen) == "line 1 of the log", "the first line")
        await settled(pilot, lambda: page(screen).line_count == 3_000, "the count of one log")
        await pilot.press("colon", *"1234", "enter")
        await settled(pilot, lambda: cursor(screen) == "line 1234 of the log", "line 1 234")
        assert "line 1 234 of 3 000" in shown(app)
        first, *_, last = page(screen).numbers
        await pilot.press("pagedown")
        await settled(pilot, lambda: page(screen).numbers[0] == last, "a page down, one row kept")
        await pilot.press("pageup")
        await settled(pilot, lambda: page(screen).numbers[0] == first, "and up again")
        await pilot.press("colon", *"99999", "enter")
        await settled(pilot, lambda: "has 3000 lines" in shown(app), "the remark")

    drive(run, play)


def test_search_counts_and_goes_both_ways(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("slash", *"error", "enter")
        await settled(pilot, lambda: "30 of 30" in shown(app), "the newest match and the count")
        await settled(pilot, lambda: "n ↑ older  N ↓ newer" in shown(app), "where its keys lead")
        assert cursor(screen).startswith("line 2907 ")
        await pilot.press("n")
        await settled(pilot, lambda: "29 of 30" in shown(app), "an older one")
        assert cursor(screen).startswith("line 2807 ")
        await pilot.press("N")
        await settled(pilot, lambda: "30 of 30" in shown(app), "a newer one")

    drive(run, play)


def test_esc_gives_up_what_is_being_looked_for_before_it_leaves(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        screen.report(lc.Remark("none so far, 12% searched; Esc gives up"))
        await until(pilot, lambda: "12% searched" in shown(app), "the progress")
        await pilot.press("escape")
        await until(pilot, lambda: "12% searched" not in shown(app), "no more progress")
        await settled(pilot, lambda: not page(screen).following, "it stands still")
        assert screen.is_whole
        await pilot.press("escape")
        await until(pilot, lambda: not screen.is_whole, "all panes")

    drive(run, play)


@plays(recorded.healthy)
async def test_ranks_are_one_log_and_each_its_own(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
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


def test_failure_editor_chart_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded.healthy(tmp_path / "run")
    ran: list[list[str]] = []
    seen: list[str] = []

    def lend(_app: object, argv: list[str]) -> str:
        ran.append(argv)
        return ""

    monkeypatch.setattr(log_pane, "run_outside", lend)
    monkeypatch.setenv("VISUAL", "/bin/cat")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("F")
        await settled(pilot, lambda: cursor(screen).startswith("torch.OutOfMemoryError"), "the cause")
        assert page(screen).attempt == 1
        await pilot.press("e")
        seen.append(cursor(screen))
        await pilot.press("escape")
        await until(pilot, lambda: not screen.is_whole, "all panes")
        screen = await opened(app, pilot, LogAt(attempt=2, step=1000.0))
        await settled(pilot, lambda: cursor(screen).startswith("step  1000 "), "the step's line")
        await pilot.press("c")
        await until(pilot, lambda: not screen.is_whole, "all panes")
        await pilot.pause()
        assert app.focused is app.dashboard.query_one("#loss", LossPanel)

    drive(run, play)
    ((_, number, path),) = ran
    line = Path(path).read_text(encoding="utf-8").splitlines()[int(number) - 1]
    assert line.endswith(seen[0]), "the line under the cursor, among the logs of all ranks"


def test_copy_by_keys_and_by_mouse(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run", 100)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await settled(pilot, lambda: "line 100 " in shown(app), "the log")
        await pilot.press("k", "V", "k", "k", "y")
        await settled(pilot, lambda: "3 lines copied" in shown(app), "the copy")
        assert app.clipboard == "line 97 of the log\nline 98 of the log\nline 99 of the log"
        await pilot.click("#log", offset=(20, 3))
        await pilot.press("y")
        await settled(pilot, lambda: "1 line copied" in shown(app), "the copy")
        assert app.clipboard == page(screen).rows[2].text

    drive(run, play)


def test_a_program_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left is drawn over, in the size that the terminal has by then; how it ended is said."""
    drawn: list[dict[str, bool]] = []
    lent: list[str] = []

    class Lent:
        @contextmanager
        def suspend(self) -> Iterator[None]:
            lent.append("lent")
            yield
            lent.append("back")

        def refresh(self, **how: bool) -> None:
            drawn.append(how)

    app = cast("App[object]", Lent())
    assert outside.run_outside(app, ["true"]) == ""
    assert outside.run_outside(app, ["sh", "-c", "exit 3"]) == "sh ended with 3"
    assert lent == ["lent", "back"] * 2
    assert drawn == [{"layout": True}] * 2
    assert outside.run_outside(app, ["/nowhere/vi"]) == "/nowhere/vi: No such file or directory"

    def refuse(_self: object) -> object:
        raise SuspendNotSupported

    monkeypatch.setattr(Lent, "suspend", refuse)
    assert outside.run_outside(app, ["true"]) == "this terminal cannot be lent to another program"
