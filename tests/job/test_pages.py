"""The page of keys is what the tables of settings say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_keys_are_as_the_tables_of_settings_have_them() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "configs_page.py"))
    text = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")
    assert made["page"](text) == text, "run: python scripts/configs_page.py"
    assert text.count("<!-- end -->") == 2
    missing = [
        key
        for key in (*made["SETTINGS"], *made["settings"].types())
        if f"| `{key.rpartition('.')[2]}` |" not in text
    ]
    assert missing == []
