"""The page of failures is what the tables of signatures, words and rules say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_failures_are_as_the_tables_and_the_rules_have_them() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "failures_page.py"))
    text = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")
    assert made["page"]() == text, "run: python scripts/failures_page.py"
