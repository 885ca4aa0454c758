"""`o` opens the line of code that the failure card names, and `Y` copies the card."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.views.tui.app import StokerApp
from supervisor.views.tui.shell import external_editor
from supervisor.views.tui.shell.external_editor import Spot, source_spot
from supervisor.views.tui.shell.prompts import Confirm
from tests.views.tui import recorded
from tests.views.tui.driving import drive, on_dashboard, pane, until

LONG = " ".join(f"--option-{number} value-{number}" for number in range(40))
SECRET = "hf_abcdefghijklmnopqrstuvwxyz01234567"


def test_only_a_regular_file_and_links_are_followed_before_the_folder_is_compared(tmp_path: Path) -> None:
    job, other = tmp_path / "job", tmp_path / "other.py"
    job.mkdir()
    (job / "train.py").write_text("x\n")
    other.write_text("x\n")
    (job / "link.py").symlink_to(other)
    os.mkfifo(job / "pipe.py")
    assert source_spot("train.py", 7, str(job)) == (Spot(str(job / "train.py"), 0, 7), True)
    assert source_spot(str(job / "train.py"), 7, str(job)) == (Spot(str(job / "train.py"), 0, 7), True)
    for outside in ("link.py", "../other.py", str(other)):
        assert source_spot(outside, 1, str(job)) == (Spot(str(other), 0, 1), False), outside
    assert source_spot(str(other), 1, None) == (Spot(str(other), 0, 1), False)
    for bad in ("pipe.py", ".", "gone.py", "nul\0.py"):
        assert isinstance(source_spot(bad, 1, str(job)), str), bad
    assert isinstance(source_spot("train.py", 1, None), str)


def test_o_runs_the_editor_on_the_line_and_asks_first_outside_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    file = tmp_path / "train.py"
    file.write_text("print(los)\n")
    monkeypatch.setenv("EDITOR", "/bin/true")
    monkeypatch.delenv("VISUAL", raising=False)

    def run_outside(_app: object, argv: list[str]) -> str:
        ran.append(argv)
        return ""

    monkeypatch.setattr(external_editor, "run_outside", run_outside)
    inside = [True]
    monkeypatch.setattr(
        external_editor, "source_spot", lambda _path, line, _cwd: (Spot(str(file), 0, line), inside[0])
    )

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        assert app.dashboard.focused is app.dashboard.panes.log
        await pilot.press("o")
        assert ran == [["/bin/true", "+97", str(file)]]
        inside[0] = False
        await pilot.press("o")
        assert isinstance(app.screen, Confirm)
        await pilot.press("n")
        assert on_dashboard(app)
        assert len(ran) == 1
        await pilot.press("v", "o", "y")
        await until(pilot, lambda: len(ran) == 2, "the editor")

    drive(recorded.failed(tmp_path / "run"), play)


def test_the_card_is_copied_whole_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    monkeypatch.setattr(StokerApp, "copy_to_clipboard", lambda _app, text: copied.append(text))
    monkeypatch.setattr(
        "supervisor.views.tui.panels.failure_card.again_text",
        lambda _snapshot: f"stoker run train.py {LONG} --token \x1b[31m{SECRET}",
    )

    async def play(app: StokerApp, pilot: Pilot[None]) -> None:
        await pilot.press("Y")
        assert "lines copied" in pane(app, "notice")

    drive(recorded.failed(tmp_path / "run"), play, size=(80, 24))
    (text,) = copied
    head, title, *_ = text.splitlines()
    assert head == "run · gpt-d12"
    assert title.startswith("✗ attempt 1 failed, ")
    assert f"stoker run train.py {LONG} --token " in text, "a command is one line, to be pasted"
    assert "…" not in text
    assert "NameError: name 'los' is not defined (train.py:97)" in text
    assert "advice   fix train.py line 97" in text
    assert "hf_abcd" not in text
    assert all(line.isprintable() for line in text.splitlines())
