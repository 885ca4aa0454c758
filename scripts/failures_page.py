"""Write docs/failures.md from the signature tables."""  # noqa: INP001 - a script, not a package

from __future__ import annotations

from pathlib import Path

from supervisor.diagnosis.page import failures_page
from supervisor.diagnosis.tables import parse_tables
from supervisor.sources.signature_files import read_tables

if __name__ == "__main__":
    page = Path(__file__).resolve().parent.parent / "docs" / "failures.md"
    page.write_text(failures_page(parse_tables(read_tables())), encoding="utf-8")
