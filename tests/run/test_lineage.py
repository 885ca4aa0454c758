"""The best loss is of the lineage that lives: what a later attempt does again does not count."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as some

from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.state import MAX_RECORDS, RunState

Steps = Sequence[tuple[int, float]]


def told(*attempts: Steps, resumed: Sequence[int | None] = (), meant: Sequence[int | None] = ()) -> RunState:
    """Attempts, each by its steps and losses; `resumed`: the step of the checkpoint that each loaded, `meant`: was to load."""
    events: list[ev.Event] = []
    t = 0.0
    for number, steps in enumerate(attempts, start=1):
        at = meant[number - 1] if number <= len(meant) else None
        events.append(ev.LaunchIntended(t=t, attempt=number, argv=("x",), reason="again", resume_at=at))
        if number <= len(resumed):
            events.append(ev.TrainerReady(t=t, attempt=number, resumed_step=resumed[number - 1]))
        for step, loss in steps:
            t += 1
            events.append(ev.Progress(t=t, attempt=number, step=step, loss=loss))
    return replay(events)


def test_a_resumed_attempt_keeps_what_came_before_its_checkpoint() -> None:
    state = told([(10, 3.0), (20, 2.0), (30, 1.0)], [(100, 2.5)], resumed=[None, 20])
    assert state.best_loss == 2.0, "steps 21 to 30 are done again, though step 100 is the first that is said"
    assert state.cuts == {1: 21}


def test_the_checkpoint_that_it_was_to_go_on_from_counts_once_a_step_after_it_is_seen() -> None:
    steps = [(10, 3.0), (20, 2.0), (30, 1.0)]
    assert told(steps, [], meant=[None, 20]).best_loss == 1.0
    went_on = told(steps, [(40, 2.5)], meant=[None, 20])
    assert (went_on.best_loss, went_on.cuts) == (2.0, {1: 21})
    again = told(steps, [(5, 4.0)], meant=[None, 20])
    assert (again.best_loss, again.cuts) == (4.0, {1: 5}), "it did not do as it was told"


def test_until_its_first_step_a_new_attempt_takes_nothing_away() -> None:
    state = told([(1, 3.0), (50, 1.0)], [])
    assert state.best_loss == 1.0
    assert state.cuts == {}


def test_many_bests_are_kept_in_bounds_and_the_least_stays_exact() -> None:
    state = told([(step, 1000.0 - step) for step in range(900)])
    assert len(state.records) <= MAX_RECORDS
    assert state.best_loss == 101.0


SOME_ATTEMPTS = some.lists(
    some.tuples(some.integers(0, 30), some.lists(some.floats(0.0, 9.0), max_size=12)), min_size=1, max_size=4
)


@given(SOME_ATTEMPTS)
def test_the_best_is_the_least_of_what_lives(attempts: list[tuple[int, list[float]]]) -> None:
    runs = [[(first + at, loss) for at, loss in enumerate(losses)] for first, losses in attempts]
    state = told(*runs)
    alive = [
        loss
        for number, steps in enumerate(runs, start=1)
        for step, loss in steps
        if step < state.cuts.get(number, float("inf"))
    ]
    assert state.best_loss == min(alive, default=None)
