"""The time from a failure to the next completed step, out of the journal."""

from __future__ import annotations

import pytest

from supervisor.run import events as ev
from supervisor.run.failure_history import recovery_of
from tests.conftest import not_none

ENDED = ev.AttemptEnded(t=11.0, attempt=1, exit_code=1)
AGAIN: list[ev.Event] = [
    ev.LaunchIntended(t=14.0, attempt=2, argv=(), reason=""),
    ev.AttemptStarted(t=14.5, attempt=2, pid=1, start_time=1.0),
    ev.Progress(t=20.0, attempt=2, step=7),
]


def test_a_recovery_is_broken_down_into_its_parts() -> None:
    facts: list[ev.Event] = [
        ev.RankExited(t=10.0, attempt=1, local_rank=1),
        ev.StopIntended(t=10.1, attempt=1, why=ev.StopWhy.RANK_DIED, by="", grace_s=5.0),
        ev.AttemptEnded(t=11.0, attempt=1, exit_code=1),
        ev.BackoffStarted(t=11.2, attempt=1, until=12.0, delay_s=0.8),
        ev.LaunchIntended(t=14.0, attempt=2, argv=(), reason=""),
        ev.AttemptStarted(t=14.5, attempt=2, pid=1, start_time=1.0),
        ev.RankStarted(t=16.0, attempt=2, local_rank=0, pid=2),
        ev.TrainerReady(t=19.0, attempt=2),
        ev.Progress(t=20.0, attempt=2, step=7),
        ev.Progress(t=21.0, attempt=2, step=8),
    ]
    found = not_none(recovery_of(facts, 2))
    assert (found.total_s, found.end_s, found.drain_s, found.spawn_s) == (10.0, 1.0, 2.0, 0.5)
    assert (found.rendezvous_s, found.load_s, found.first_step_s) == (1.5, 3.0, 1.0)
    assert found.detect_s is None, "no verdict in this journal"
    assert recovery_of(facts, 1) is None
    assert recovery_of(facts[:-2], 2) is None


@pytest.mark.parametrize(
    ("sign", "total_s"),
    [
        (ev.RankExited(t=8.0, attempt=1, local_rank=1), 12.0),
        (ev.ProcessesGone(t=8.0, attempt=1, exit_code=1), 12.0),
        (ev.ProcessesGone(t=8.0, attempt=1, exit_code=None), 12.0),
        (ev.ProcessesGone(t=8.0, attempt=1, exit_code=0), 9.0),
        (ev.StopIntended(t=8.0, attempt=1, why=ev.StopWhy.HANG, by="", grace_s=5.0), 12.0),
        (ev.StopIntended(t=8.0, attempt=1, why=ev.StopWhy.REQUEST, by="", grace_s=5.0), 9.0),
    ],
)
def test_a_failure_counts_from_its_first_sign(sign: ev.Event, total_s: float) -> None:
    found = not_none(recovery_of([sign, ENDED, *AGAIN], 2))
    assert found.total_s == total_s


def test_a_run_that_somebody_continued_has_not_recovered() -> None:
    over = ev.RunEnded(t=12.0, outcome=ev.Outcome.FAILED, exit_code=1, reason="")
    assert recovery_of([ENDED, over, *AGAIN], 2) is None
