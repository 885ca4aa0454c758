"""What people type into the filters and mean as a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.run.paths import RunPaths
from supervisor.run.state import RunState
from supervisor.views.model.run_list import RunRow, filter_trouble, filtered

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("loss<x", "loss<x: x is no number: write one, as in loss<2.5"), ("state:failed loss>=", ""),
        ("loss<2.5 step>=100", ""), ("total<=x", "total<=x: x is no number: write one, as in total<=2.5"),
        ("duration>=X", "duration>=X: x is no number: write one, as in duration>=2.5"),
        ("attempts>1s", "attempts>1s: 1s is no number: write one, as in attempts>2.5"),
        ("step<=x", "step<=x: x is no number: write one, as in step<=2.5"),
        *(
            (f"{field}>1", f"{field}>1: {field} is no number: use : or = with it, as in {field}:1")
            for field in ("state", "id", "note", "failure", "host", "started")
        ),
        ("name<ada", "name<ada: name is no number: use : or = with it, as in name:ada"), ("a<b words", ""),
        ("failure:cuda_omm state:zzz nme:x", ""),
    ],
)  # fmt: skip
def test_the_list_of_runs_says_what_is_wrong_with_a_filter(typed: str, said: str) -> None:
    assert filter_trouble(typed) == said


def test_a_bad_expression_filters_everything_out_and_is_said() -> None:
    assert filter_trouble("x /(/").startswith("/(/ is not a valid regular expression: ")
    assert filtered([RunRow(RunPaths(ROOT), RunState(), live=False)], "/(/", 0.0) == []
