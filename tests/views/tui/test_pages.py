"""Pages answer one question each; editing arguments asks the keeper for exactly what was shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from supervisor.run.events import RequestKind
from supervisor.run.paths import RunPaths
from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.shell.restart_dialogs import BadEdit, EditScreen, differences, parse_edit
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane, plays, requests, shown, until


def test_processes_page_shows_the_newest_stacks(tmp_path: Path) -> None:
    run = recorded.healthy(tmp_path / "run")
    run.artifacts.mkdir(exist_ok=True)
    (run.artifacts / "stacks.txt").write_text(
        "== local rank 0, pid 4500\n    [bold]all_reduce[/] (ddp.py:1)\n"
    )

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        page = pane(app, "processes")
        assert "rank 1      pid 4501" in page
        assert "[bold]all_reduce[/] (ddp.py:1)" in page

    drive(run, play)


@plays(recorded.held)
async def test_edit_sends_what_was_shown(app: StokerApp, pilot: Pilot[None], run: RunPaths) -> None:
    await pilot.press("e")
    assert isinstance(app.screen, EditScreen)
    area = app.screen.query_one(TextArea)
    before = area.text
    await pilot.press("q")
    assert area.text == f"{before}q", "what is typed continues at the end"
    area.text = "--lr 1e-4 --batch_size 16 '--name=a b'"
    await pilot.press("tab", *"X=1 Y", "enter")
    assert isinstance(app.screen, EditScreen), "Y is no NAME=VALUE"
    assert "write variables as NAME=VALUE" in shown(app)
    app.screen.query_one(Input).value = "X=1"
    await pilot.pause()
    text = shown(app)
    assert "- --lr 3e-4" in text
    assert "+ --lr 1e-4" in text
    assert "+ X=1" in text
    await pilot.press("enter")
    await until(pilot, lambda: bool(requests(run)), "a request")
    (request,) = requests(run)
    assert request.kind is RequestKind.RESTART_WITH
    assert request.args.argv == ("--lr", "1e-4", "--batch_size", "16", "--name=a b")
    assert request.args.env == {"X": "1"}


def test_edits_are_parsed_as_a_shell_would() -> None:
    edited = parse_edit("--lr 1", "A='x y' B=")
    assert (edited.argv, edited.env) == (("--lr", "1"), {"A": "x y", "B": ""})
    for arguments, environment, said in [
        ("'--lr", "", "close the quote"),
        ("", "1A=2", "NAME=VALUE"),
        ("", "HF_TOKEN=abc", "holds a secret"),
    ]:
        with pytest.raises(BadEdit, match=said):
            parse_edit(arguments, environment)


def test_differences_keep_a_flag_with_its_value() -> None:
    edited = parse_edit("--lr 2 --seed 1", "")
    assert differences(("--lr", "-1e-4", "--seed", "1", "-v"), edited) == ["- --lr -1e-4", "+ --lr 2", "- -v"]
