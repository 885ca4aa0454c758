"""`Y` copies the failure card."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from supervisor.views.tui.app import StokerApp
from tests.views.tui import recorded
from tests.views.tui.driving import drive, pane

LONG = " ".join(f"--option-{number} value-{number}" for number in range(40))
SECRET = "hf_abcdefghijklmnopqrstuvwxyz01234567"


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
