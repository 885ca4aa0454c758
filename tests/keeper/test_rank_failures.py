"""A rank that failed is named as soon as its process has ended; an error that was printed alone tells nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from supervisor.keeper.monitoring.observations import Reported, StepSeen
from supervisor.keeper.monitoring.rank_failures import FRESH_S, RankFailures
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.records import FailureClass
from tests.conftest import not_none
from tests.keeper.fakes import FakeClock, evidence


def error(t: float, rank: int | None = 1, text: str = "ValueError: bad") -> Reported:
    return evidence(text, rank, t=t)


def view_of(codes: dict[int, int | None], failing: ev.RankFailing | None = None) -> st.AttemptState:
    ranks = {1: st.RankState(local_rank=1, rank=1)}
    ranks |= {n: st.RankState(local_rank=n, rank=n, exited=True, exit_code=code) for n, code in codes.items()}
    return st.AttemptState(number=1, planned_t=0.0, ranks=ranks, failing=failing)


@pytest.mark.parametrize(
    ("codes", "wrote", "text"),
    [
        ({}, True, None),  # it printed an error, and lives
        ({1: 1}, True, "ValueError: bad"),
        ({1: -9}, False, ""),
        ({1: 0}, True, None),
        ({1: None}, True, None),
    ],
)
def test_the_exit_code_shows_the_failure_and_the_last_error_its_cause(
    codes: dict[int, int | None], wrote: bool, text: str | None
) -> None:
    clock = FakeClock()
    failures = RankFailures(clock)
    if wrote:
        failures.observe(error(clock.wall()))
    told = failures.look(view_of(codes))
    if text is None:
        assert told is None
        return
    gone = ev.RankFailing(
        t=clock.wall(), attempt=1, local_rank=1, rank=1, sign=ev.FailureSign.GONE, exit_code=codes[1]
    )
    of_error = {"failure": FailureClass.CODE_ERROR, "text": text, "path": "t/1/stderr.log", "line": 4}
    assert told == (replace(gone, **of_error) if text else gone)


@pytest.mark.parametrize("is_over", [True, False], ids=["long ago", "a step since"])
def test_an_error_that_was_handled_is_no_cause(is_over: bool) -> None:
    clock = FakeClock()
    failures = RankFailures(clock)
    failures.observe(error(clock.wall()))
    clock.now += FRESH_S if is_over else 1.0
    if is_over:
        assert not_none(failures.look(view_of({1: 3}))).text == "ValueError: bad", "it is fresh for so long"
        clock.now += 0.5
    if not is_over:
        failures.observe(StepSeen(clock.wall(), 1, {"step": 1.0}, from_telemetry=False))
    told = not_none(failures.look(view_of({1: 3})))
    assert (told.exit_code, told.text, told.failure) == (3, "", None)


def test_of_several_the_one_whose_error_came_first_and_only_once() -> None:
    clock = FakeClock()
    failures = RankFailures(clock)
    failures.observe(error(clock.wall(), 1, "the cause"))
    failures.observe(error(clock.wall() + 0.1, 0, "Connection closed by peer"))
    told = not_none(failures.look(view_of({0: 1, 1: 1})))
    assert (told.local_rank, told.text) == (1, "the cause")
    assert failures.look(view_of({0: 1, 1: 1}, told)) is None
