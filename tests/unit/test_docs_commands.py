"""docs/commands.md says what the parsers say, and the README leads to every page."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_as_the_parsers_are() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "commands_page.py"))
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert made["page"]() == text, "run: python scripts/commands_page.py"


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert [name for name in pages if f"](docs/{name})" not in readme] == []
