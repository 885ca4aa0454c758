"""The log screen: what it says of a log, and what it hands to other programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from textual.app import App, SuspendNotSupported
from textual.pilot import Pilot

from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.logs import screen as log_screen
from supervisor.views.tui.shell import external_editor as outside
from tests.views.tui import recorded
from tests.views.tui.driving import drive, shown
from tests.views.tui.log_driving import counted, cursor, opened, settled


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
