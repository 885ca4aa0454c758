"""When an attempt failed, from which a recovery is timed."""

from __future__ import annotations

import pytest

from supervisor.run import events as ev
from supervisor.run.fold import replay

PLANNED = ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="")
ENDED = ev.AttemptEnded(t=11.0, attempt=1, exit_code=1)


def failed_t(*events: ev.Event) -> float | None:
    return replay([PLANNED, *events]).attempts[0].failed_t


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        (ev.RankExited(t=8.0, attempt=1, local_rank=1, exit_code=1), 8.0),
        (ev.RankExited(t=8.0, attempt=1, local_rank=1), 8.0),
        (ev.RankExited(t=8.0, attempt=1, local_rank=1, exit_code=0), 11.0),
        (ev.ProcessesGone(t=8.0, attempt=1, exit_code=1), 8.0),
        (ev.ProcessesGone(t=8.0, attempt=1, exit_code=None), 8.0),
        (ev.ProcessesGone(t=8.0, attempt=1, exit_code=0), 11.0),
        (ev.StopIntended(t=8.0, attempt=1, why=ev.StopWhy.HANG, by="", grace_s=5.0), 8.0),
        (ev.StopIntended(t=8.0, attempt=1, why=ev.StopWhy.REQUEST, by="", grace_s=5.0), 11.0),
        (ev.RankExited(t=8.0, attempt=2, local_rank=1, exit_code=1), 11.0),
    ],
)
def test_a_failure_counts_from_its_first_sign(sign: ev.Event, expected: float) -> None:
    assert failed_t(sign, ENDED) == expected


def test_a_run_that_has_ended_does_not_recover() -> None:
    over = ev.RunEnded(t=12.0, outcome=ev.Outcome.FAILED, exit_code=1, reason="")
    assert failed_t(ENDED, over) is None
