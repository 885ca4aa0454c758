"""The page of commands is what the parsers say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_commands_are_as_the_parsers_have_them() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "commands_page.py"))
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert made["page"]() == text, "run: python scripts/commands_page.py"
