"""The log screen: what it folds, what it says of a log, and what it hands to other programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from textual.app import App, SuspendNotSupported
from textual.pilot import Pilot

from supervisor.views.logs.commands import LogAt
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.logs import screen as log_screen
from supervisor.views.tui.shell import external_editor as outside
from supervisor.views.tui.shell.external_editor import Spot, editor_argv, pager_argv
from tests.diagnosis.launcher_logs import REPORT
from tests.views.tui import recorded
from tests.views.tui.driving import drive, shown
from tests.views.tui.log_driving import counted, cursor, opened, page, settled
from tests.views.tui.test_log_pane import reported


def test_pager_and_editor_are_given_the_line_or_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = counted(tmp_path / "run", 500)
    ran: list[list[str]] = []

    def lend(_app: object, argv: list[str]) -> str:
        ran.append(argv)
        return ""

    monkeypatch.setattr(log_screen, "run_outside", lend)
    monkeypatch.setenv("PAGER", "/bin/cat")
    monkeypatch.setenv("EDITOR", "/nowhere/vi")
    monkeypatch.setattr(outside, "EDITORS", ())

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("right_square_bracket", "o", "colon", *"42", "enter")
        await settled(pilot, lambda: cursor(screen) == "line 42 of the log", "line 42")
        await pilot.press("p")
        assert ran == [["/bin/cat", "+42", str(page(screen).logs[1].path)]]
        await pilot.press("e")
        await settled(pilot, lambda: "no editor: set EDITOR" in shown(app), "the remark")

    drive(run, play)


def test_among_the_logs_of_ranks_the_editor_opens_at_the_line_under_the_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorded.healthy(tmp_path / "run")
    ran: list[list[str]] = []
    seen: list[str] = []

    def lend(_app: object, argv: list[str]) -> str:
        ran.append(argv)
        return ""

    monkeypatch.setattr(log_screen, "run_outside", lend)
    monkeypatch.setenv("VISUAL", "/bin/cat")

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("F")
        await settled(pilot, lambda: cursor(screen).startswith("torch.OutOfMemoryError"), "the cause")
        await pilot.press("e")
        seen.append(cursor(screen))

    drive(run, play)
    ((_, number, path),) = ran
    assert Path(path).read_text(encoding="utf-8").splitlines()[int(number) - 1].endswith(seen[0])


def test_commands_for_pagers_and_editors() -> None:
    spot = Spot("/runs/a b.log", 4096, 42)
    assert editor_argv(spot, {"EDITOR": "/bin/true -w"}) == ["/bin/true", "-w", "+42", "/runs/a b.log"]
    assert pager_argv(Spot("/x", 9, None), {"PAGER": "/bin/cat"}) == ["/bin/cat", "/x"]
    less = pager_argv(spot, {"PAGER": "/usr/bin/less -S"})
    assert isinstance(less, list)
    if os.path.exists("/usr/bin/less"):
        assert less[-3:] == ["+4096P", "--", "/runs/a b.log"]
    assert "unfinished" not in str(editor_argv(spot, {"EDITOR": "vi 'unfinished"}))


def test_torchruns_own_traceback_is_one_line_until_enter(tmp_path: Path) -> None:
    run, rec = reported(tmp_path)
    rec.close()
    one = f"rank 1 exitcode 1 ({len(REPORT)} lines, Enter opens)"

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot, LogAt())
        await settled(pilot, lambda: one in shown(app), "the folded report")
        assert "Root Cause" not in shown(app)
        await pilot.press("enter")
        await settled(pilot, lambda: "raise ChildFailedError(" in shown(app), "the report")
        assert cursor(screen) == REPORT[0], "the cursor stays where it was opened"
        await pilot.press("enter")
        await settled(pilot, lambda: one in shown(app), "folded again")
        await pilot.press("V", "y")
        await settled(pilot, lambda: "copied" in shown(app), "the copy")
        await pilot.press("slash", *"root cause", "enter")
        await settled(pilot, lambda: cursor(screen).startswith("Root Cause"), "found in what was folded")

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


def test_what_was_said_ends_with_the_next_key_that_asks_or_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = counted(tmp_path / "run", 500)
    monkeypatch.setattr(log_screen, "REMARK_S", 600.0)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await opened(app, pilot)

        async def said(text: str, *keys: str) -> None:
            await pilot.press(*keys)
            await settled(pilot, lambda: text in shown(app), text)

        async def ended(text: str, *keys: str) -> None:
            await pilot.press(*keys)
            await settled(pilot, lambda: text not in shown(app), f"the end of {text!r}")

        await said("line 500 of 500", "right_square_bracket", "o")
        await said("not found", "slash", *"zzz", "enter")
        assert "line 500 of 500" not in shown(app)
        await ended("not found", "slash", *"line 10 ", "enter")
        await said("the only match", "n")
        await ended("the only match", "g")
        await said("abc: give a line's number", "colon", *"abc", "enter")
        await ended("abc: give a line's number", "escape")
        await said("abc: give a line's number", "colon", *"abc", "enter")
        await ended("abc: give a line's number", "escape")

    drive(run, play)


def test_a_time_is_not_looked_for_in_a_log_without_times(tmp_path: Path) -> None:
    run, _ = counted(tmp_path / "run", 500)

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        screen = await opened(app, pilot)
        await pilot.press("colon", *"42", "enter")
        await settled(pilot, lambda: cursor(screen) == "line 42 of the log", "line 42")
        await pilot.press("colon", *"2001-01-01 12:30", "enter")
        await settled(pilot, lambda: "the log has no times: give a line's number" in shown(app), "the remark")
        assert cursor(screen) == "line 42 of the log"

    drive(run, play)
