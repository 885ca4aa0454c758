"""What people type into the filters and mean as a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.run.paths import RunPaths
from supervisor.run.state import AttemptState, RankState, RunState
from supervisor.views.model.run_list import RunRow, filter_trouble, filtered
from supervisor.views.wording.phrases import place_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("loss<x", "loss<x: x is no number: write one, as in loss<2.5"),
        ("state:failed loss>=", ""),
        ("loss<2.5 step>=100", ""),
        ("total<=x", "total<=x: x is no number: write one, as in total<=2.5"),
        ("duration>=X", "duration>=X: x is no number: write one, as in duration>=2.5"),
        ("attempts>1s", "attempts>1s: 1s is no number: write one, as in attempts>2.5"),
        ("step<=x", "step<=x: x is no number: write one, as in step<=2.5"),
        *(
            (f"{field}>1", f"{field}>1: {field} is no number: use : or = with it, as in {field}:1")
            for field in ("state", "id", "note", "failure", "host", "started")
        ),
        ("name<ada", "name<ada: name is no number: use : or = with it, as in name:ada"),
        ("a<b words", ""),
        ("failure:cuda_omm state:zzz nme:x", ""),
    ],
)
def test_the_list_of_runs_says_what_is_wrong_with_a_filter(typed: str, said: str) -> None:
    assert filter_trouble(typed) == said


def test_a_bad_expression_filters_everything_out_and_is_said() -> None:
    assert filter_trouble("x /(/").startswith("/(/ is not a valid regular expression: ")
    assert filtered([RunRow(RunPaths(ROOT), RunState(), live=False)], "/(/", 0.0) == []


def test_a_watched_log_that_names_no_rank_is_said_by_its_name() -> None:
    unknown = AttemptState(number=1, planned_t=0.0, ranks={0: RankState(local_rank=0, stdout="/w/train.log")})
    known = AttemptState(
        number=1, planned_t=0.0, ranks={0: RankState(local_rank=0, rank=0, stdout="/w/train.log")}
    )
    early = AttemptState(
        number=1, planned_t=0.0, ranks={0: RankState(local_rank=0, stdout="tree/0/stdout.log")}
    )
    assert place_of(unknown, "/w/train.log", 7) == "w/train.log:7"
    assert place_of(known, "/w/train.log", 7) == "rank 0 train.log:7"
    assert place_of(early, "tree/0/stdout.log", 7) == "rank 0 stdout.log:7", "the rank is learnt later"
