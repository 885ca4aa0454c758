"""Where steps are quicker than the journal's one fact a second, the best loss is still that of all samples."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as some

from supervisor.keeper.monitoring.observations import StepSeen
from supervisor.keeper.recording.recorder import MAX_MINIMA, Recorder
from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.run.series import METRICS, SeriesReader
from tests.keeper.fakes import Emitted, FakeClock

Steps = list[tuple[int, float, float]]
"""Step, loss, and seconds since the step before."""


class Run:
    """A recorder whose facts make a journal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.emitted = folder, FakeClock(), Emitted()
        self.recorder = Recorder(folder, self.emitted, self.clock)

    def attempt(self, number: int, steps: Steps) -> None:
        self.emitted(ev.LaunchIntended(t=float(number), attempt=number, argv=("x",), reason="again"))
        self.recorder.begin(number)
        self.see(number, steps)
        self.recorder.flush()

    def see(self, number: int, steps: Steps) -> None:
        for step, loss, after_s in steps:
            self.clock.now += after_s
            self.recorder.record(
                number, StepSeen(1.0, 0, {"step": float(step), "loss": loss}, from_telemetry=True)
            )
            self.recorder.tick()

    def adopt(self, number: int) -> None:
        """The keeper died: another one continues with what is on disk."""
        self.recorder._series.close()  # as its end would
        self.recorder = Recorder(self.folder, self.emitted, self.clock)
        self.recorder.begin(number, adopted=replay(self.emitted.facts))


def test_a_low_that_the_dead_keeper_had_not_told_is_told_by_the_next(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.emitted(ev.LaunchIntended(t=1.0, attempt=1, argv=("x",), reason="first start"))
    run.recorder.begin(1)
    run.see(1, [(1, 9.0, 0.1), (2, 3.0, 0.1), (3, 8.0, 0.1)])
    assert replay(run.emitted.facts).best_loss == 9.0
    run.adopt(1)
    run.see(1, [(1, 9.0, 0.0), (2, 3.0, 0.0), (3, 8.0, 0.0), (4, 8.5, 2.0)])
    run.recorder.close()
    state = replay(run.emitted.facts)
    assert (state.best_loss, state.best_step) == (3.0, 2)


def test_of_too_many_lows_the_newest_stay(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.attempt(1, [(step, 1000.0 - step, 0.0) for step in range(1, 1000)])
    found = [low for fact in run.emitted.facts if isinstance(fact, ev.Progress) for low in fact.minima]
    assert len(found) == MAX_MINIMA + 1, "the first step is journalled at once"
    assert found[-1] == (999, 1.0)


SOME_STEPS = some.lists(
    some.tuples(some.floats(0.0, 9.0), some.sampled_from([0.0, 0.3, 0.7, 1.5])), max_size=12
)


@given(some.lists(some.tuples(some.integers(0, 30), SOME_STEPS), min_size=1, max_size=4))
def test_the_best_is_the_least_of_all_samples_that_live(
    attempts: list[tuple[int, list[tuple[float, float]]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        for number, (first, steps) in enumerate(attempts, start=1):
            run.attempt(number, [(first + at, loss, after_s) for at, (loss, after_s) in enumerate(steps)])
        run.recorder.close()
        state = replay(run.emitted.facts)
        alive = {
            (sample.v["loss"], sample.v["step"])
            for sample in SeriesReader(Path(folder), METRICS).read()
            if (sample.v["step"] or 0) < state.cuts.get(sample.a, math.inf)
        }
        assert state.best_loss == min((loss for loss, _ in alive if loss is not None), default=None)
        assert state.best_loss is None or (state.best_loss, state.best_step) in alive
