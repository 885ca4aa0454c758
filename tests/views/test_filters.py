"""What people type into the filters and mean as a comparison."""

from __future__ import annotations

import pytest

from supervisor.run.records import Cause
from supervisor.run.state import AttemptView, RankView
from supervisor.views.logs.newest import LogLine, tone_of
from supervisor.views.logs.query import BadQueryError, Query
from supervisor.views.model.run_list import filter_trouble
from supervisor.views.tui.logs.buffer import LogBuffer
from supervisor.views.tui.logs.pane import root_of
from supervisor.views.wording.places import place_of
from tests.diagnosis.launcher_logs import trace


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("loss<x", "loss<x: x is no number: write one, as in loss<2.5"),
        ("state:failed loss>=", ""),
        ("loss<2.5 step>=100", ""),
        ("name<ada", "name<ada: name is no number: use : or = with it, as in name:ada"),
        ("a<b words", ""),
    ],
)
def test_the_list_of_runs_says_where_a_number_is_missing(typed: str, said: str) -> None:
    assert filter_trouble(typed) == said


@pytest.mark.parametrize("typed", ["loss<x", "loss<2", "step>=100", "error lr!=0"])
def test_a_log_has_no_values_to_compare(typed: str) -> None:
    with pytest.raises(BadQueryError, match="filtered by words"):
        Query.parse(typed)


@pytest.mark.parametrize("typed", ['"loss<x"', "/loss<2/", "a<b", "[00:10<05:33", "loss", "-x>y"])
def test_words_that_only_look_like_it_are_words(typed: str) -> None:
    assert Query.parse(typed)


def test_a_watched_log_that_names_no_rank_is_said_by_its_name() -> None:
    unknown = AttemptView(number=1, planned_t=0.0, ranks={0: RankView(local_rank=0, stdout="/w/train.log")})
    known = AttemptView(
        number=1, planned_t=0.0, ranks={0: RankView(local_rank=0, rank=0, stdout="/w/train.log")}
    )
    early = AttemptView(
        number=1, planned_t=0.0, ranks={0: RankView(local_rank=0, stdout="tree/0/stdout.log")}
    )
    assert place_of(unknown, "/w/train.log", 7) == "w/train.log:7"
    assert place_of(known, "/w/train.log", 7) == "rank 0 train.log:7"
    assert place_of(early, "tree/0/stdout.log", 7) == "rank 0 stdout.log:7", "the rank is learnt later"


def test_the_root_line_is_found_in_its_own_file_first() -> None:
    buffer = LogBuffer()
    lines = [
        LogLine(1, str(rank), "stderr", text, tone_of(text), f"/run/{rank}/stderr.log", n)
        for rank in (1, 0)
        for n, text in enumerate(trace(None, f"RuntimeError: shape{'' if rank else ' of rank 0'}"))
    ]
    buffer.add(lines)
    at = root_of(buffer.visible, Cause("1/stderr.log", 6, "RuntimeError: shape"))
    assert at is not None
    assert buffer.visible[at].path == "/run/1/stderr.log"
    elsewhere = root_of(buffer.visible, Cause("2/stderr.log", 6, "RuntimeError: shape of rank 0"))
    assert elsewhere is not None
    assert buffer.visible[elsewhere].who == ("0",)
    assert root_of(buffer.visible, Cause("1/stderr.log", 6, "KeyError: 'x'")) is None
    assert root_of(buffer.visible, Cause("1/stderr.log", 6, " ")) is None


def test_a_traceback_that_comes_in_two_reads_is_not_folded_line_by_line() -> None:
    buffer = LogBuffer()
    texts = trace(None, "RuntimeError: shape")
    for start, stop in ((0, 3), (3, len(texts))):
        for rank in ("0", "1"):
            buffer.add(
                [
                    LogLine(1, rank, "stderr", text, tone_of(text), f"/run/{rank}/stderr.log", n)
                    for n, text in enumerate(texts)
                ][start:stop]
            )
    assert all(len(entry.who) == 1 for entry in buffer.visible)
    assert len(buffer.visible) == 2 * len(texts)
