"""The table of formats: each example is read, and the way to add one (docs/metrics.md) works as it is described."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from supervisor.cli.metrics import record_of
from supervisor.sources.metrics import MetricReader, formats
from supervisor.sources.metrics.formats import FORMATS, Format, Where
from tests.conftest import not_none

PAGE = (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.example)
def test_the_example_of_a_format_is_found_by_it(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    assert form.pattern.search(form.example) is not None
    with_it = MetricReader().feed(form.example)
    monkeypatch.setattr(formats, "FORMATS", tuple(other for other in FORMATS if other is not form))
    without = MetricReader().feed(form.example)
    assert with_it is not None
    assert without is None or without.values != with_it.values, "nothing else reads it so"


def test_a_format_is_added_as_the_page_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE[PAGE.index("## How to add a format") :]
    entry, printed = (
        found[1]
        for language in ("python", "json")
        if (found := re.search(rf"```{language}\n(.*?)\n```", section, re.DOTALL))
    )
    printed_line = next(row.strip() for row in section.splitlines() if row.startswith("    "))
    assert MetricReader().feed(printed_line) is None
    form = eval(entry, {"Format": Format, "Where": Where, "re": re})
    assert form.example == printed_line
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, form))
    sample = not_none(MetricReader().feed(printed_line))
    assert record_of(0, sample) == json.loads(printed)
