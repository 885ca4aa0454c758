"""What is held of a watched log's end, as it is read and judged."""

from __future__ import annotations

import pytest

from supervisor.keeper.observer.belief import Belief

B = Belief


def test_new_lines_take_an_end_back_that_was_said() -> None:
    after = {belief: belief.after_lines() for belief in B if belief.after_lines() is not belief}
    assert after == {B.SAYS_END: B.OPEN, B.SAYS_END_AGAIN: B.REOPENED}


def test_an_end_counts_where_words_decide() -> None:
    after = {b: b.after_pause(shows_end=True) for b in B if b.after_pause(shows_end=True) is not b}
    assert after == {B.OPEN: B.SAYS_END, B.REOPENED: B.SAYS_END_AGAIN}
    assert B.SAYS_END.after_pause(shows_end=False) is B.OPEN
    assert B.HELD.after_pause(shows_end=True) is B.HELD, "its writer is seen: it is over when that has ended"


@pytest.mark.parametrize(
    ("belief", "lately", "earlier"),
    [
        (B.HELD, False, False),
        (B.ASSUMED_OVER, True, True),
        (B.OPEN, False, False),
        (B.SAYS_END, True, True),
        (B.REOPENED, False, False),
        (B.SAYS_END_AGAIN, False, True),
    ],
)
def test_when_a_last_reading_may_begin(belief: Belief, lately: bool, earlier: bool) -> None:
    assert (belief.is_over(lately_written=True), belief.is_over(lately_written=False)) == (lately, earlier)


def test_that_it_said_an_end_once_is_not_forgotten() -> None:
    assert B.ASSUMED_OVER.after_no_end() is B.OPEN
    assert B.SAYS_END.after_no_end() is B.OPEN
    assert B.SAYS_END_AGAIN.after_no_end() is B.REOPENED
    assert {b for b in B if not b.is_decided_by_words} == {B.HELD, B.ASSUMED_OVER}
