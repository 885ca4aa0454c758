"""A script that prints a step and no time has a speed all the same; one that was read after the fact has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from supervisor.run import events as ev
from supervisor.run.series import METRICS, RANKS
from supervisor.run.state import A_PIPE, AttemptState, RunState
from supervisor.views.model.reader import SnapshotReader
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.model.step_pace import (
    APART_S,
    BURST_S,
    Pace,
    epoch_times,
    epochs_apart,
    job_pace,
)
from supervisor.views.model.thinned_series import Track, single
from supervisor.views.tui.panels.header import eta_s
from tests.views.tui.recording import Recording


def paced(*said: tuple[float, float], by_clock: bool = False) -> Pace:
    pace = Pace()
    for t, step in said:
        pace.add(t, step, 1, by_clock=by_clock)
    return pace


def test_lines_that_were_read_together_are_one_moment() -> None:
    """Twenty steps a second, looked for four times a second: five steps come at once."""
    pace = paced(*((0.25 * (step // 5), step) for step in range(100)))
    assert pace.seconds() == pytest.approx(0.05)


def test_another_attempt_and_a_counter_that_starts_again_begin_anew() -> None:
    pace = paced((0, 10), (1, 11))
    pace.add(2, 0, 1)
    pace.add(4, 1, 1)
    assert pace.seconds() == pytest.approx(1.0), "of 1 and 2 the lower; between 11 and 0 lies no step"
    pace.add(100, 5, 2)
    assert pace.seconds() is None
    pace.add(103, 6, 2)
    assert pace.seconds() == pytest.approx(3.0)


@settings(max_examples=25, deadline=None)
@given(
    took_s=some.floats(0.02, 20.0),
    every=some.integers(1, 100),
    late_s=some.lists(some.floats(0.0, 0.02), min_size=120, max_size=120),
)
def test_it_is_near_whatever_a_script_prints(took_s: float, every: int, late_s: list[float]) -> None:
    """Lines are read some 20 ms late, now more, now less."""
    pace = paced(*((took_s * every * n + late, every * n) for n, late in enumerate(late_s)))
    said = pace.seconds()
    assert said is not None
    assert said == pytest.approx(took_s, abs=0.02 / max(APART_S / took_s, every) + 1e-9)


def plain(root: Path, *, mode: str = "launched") -> Recording:
    rec = Recording(root, gpus=0, mode=mode)
    rec.number = 1
    rec.fact(ev.LaunchIntended(t=rec.t, attempt=1, argv=("x",), reason="first start"))
    rec.fact(ev.AttemptStarted(t=rec.t, attempt=1, pid=1, start_time=1.0))
    for rank in (0, 1):
        rec.fact(ev.RankStarted(t=rec.t, attempt=1, local_rank=rank, rank=rank))
    return rec


def said(rec: Recording, steps: int, step_s: float, **values: float | None) -> Snapshot:
    for step in range(1, steps + 1):
        rec.t += step_s
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "loss": 2.0, **values})
        for rank in ("0", "1"):
            rec.series.append(RANKS, rec.t, rank, 1, {"step": step, "loss": 2.0, **values})
        rec.fact(ev.Progress(t=rec.t, attempt=1, step=step, total_steps=100, loss=2.0))
    return SnapshotReader(rec.close()).refresh()


def test_a_plain_log_has_a_step_time_an_eta_and_one_for_each_rank(tmp_path: Path) -> None:
    snapshot = said(plain(tmp_path / "run"), 40, 0.5)
    took_s, is_derived = snapshot.step_time_s
    assert took_s == pytest.approx(0.5)
    assert is_derived
    assert eta_s(snapshot) == pytest.approx(30.0)
    assert [rank.pace_s for rank in snapshot.ranks.values()] == [pytest.approx(0.5)] * 2


@pytest.mark.parametrize(
    ("attempt", "first_step", "gaps", "left_s"),
    [
        (1, 30, 0, 900.0),  # the job's own word
        (1, 49, 0, None),  # too early for that
        (2, 30, 3, 25.0),  # a bar that was resumed counts what it skipped: the rate comes first
        (2, 49, 1, None),
        (2, 30, 1, None),
    ],
)
def test_an_eta_needs_steps_of_the_attempt_that_runs(
    attempt: int, first_step: int, gaps: int, left_s: float | None, tmp_path: Path
) -> None:
    state = RunState(
        total_steps=100,
        attempts=(AttemptState(number=attempt, planned_t=0.0, first_step=first_step, last_step=50),),
        progress=ev.Progress(t=1.0, attempt=attempt, step=50, eta_s=900.0),
    )
    pace = tuple(single(float(n), n, 0.5, attempt) for n in range(gaps))
    seen = said(plain(tmp_path / "run"), 1, 0.5)
    assert eta_s(replace(seen, state=state, pace=pace, pace_s=0.5 if gaps else None)) == left_s


@pytest.mark.parametrize("logged_s", [0.08, 5.0])
def test_a_ranks_own_time_of_a_step_is_not_the_pace_of_the_run(logged_s: float, tmp_path: Path) -> None:
    """80 ms of a rank that then waits for the others, or the time of ten steps."""
    snapshot = said(plain(tmp_path / "run"), 10, 0.5, step_time_s=logged_s)
    took_s, is_derived = snapshot.step_time_s
    assert took_s == pytest.approx(0.5)
    assert is_derived


def test_what_a_pipe_brings_first_was_written_before(tmp_path: Path) -> None:
    seen = said(plain(tmp_path / "run", mode="observed"), 8, 0.3)
    state = replace(seen.state, source=A_PIPE)
    assert seen.step_time_s[0] == pytest.approx(0.3)
    assert replace(seen, state=state).step_time_s == (None, False)
    later = tuple(gap._replace(t=gap.t + BURST_S) for gap in seen.pace)
    assert replace(seen, state=state, pace=later).step_time_s[0] == pytest.approx(0.3)


def test_a_log_read_after_the_fact_has_no_speed(tmp_path: Path) -> None:
    snapshot = said(plain(tmp_path / "run", mode="observed"), 40, 0.3, line_t=None)
    assert snapshot.step_time_s == (None, False)
    assert eta_s(snapshot) is None
    assert "line_t" not in snapshot.series


def test_unless_its_lines_bear_clocks(tmp_path: Path) -> None:
    rec = plain(tmp_path / "run", mode="observed")
    for step in range(1, 60):
        rec.series.append(METRICS, rec.t, "job", 1, {"step": step, "loss": 2.0, "line_t": 1e9 + 2 * step})
    took_s, is_derived = SnapshotReader(rec.close()).refresh().step_time_s
    assert took_s == pytest.approx(2.0)
    assert is_derived


def epochs(*took: float, every_s: float = 0.0, late: bool = False) -> Track:
    """What a log printed with epochs 1, 2, …, so far apart."""
    return tuple(
        single(1000.0, None, value, 1)._replace(epoch=float(n), late=late, line_t=50.0 + n * every_s)
        for n, value in enumerate(took, 1)
    )


def test_a_time_that_never_falls_is_that_since_the_start() -> None:
    kept = [10.0, 10.5, 11.0], [10.0, 21.0], [20.0, 8.0, 30.0]
    for values in kept:
        assert [point.mean for point in epoch_times(epochs(*values))] == values
    for values in ([10.0, 20.5, 30.5], [20.0, 28.0, 28.0, 44.0]):
        assert epoch_times(epochs(*values)) == (), "it is left out"
    since_start = [3.7 * n for n in range(1, 30)]
    assert job_pace(since_start[-1], since_start, None, 0) == (None, False)
    assert job_pace(since_start[-1], since_start, 3.7, 9) == (3.7, True)
    assert job_pace(1.0, [1.0] * 9, 1.25, 5) == job_pace(1.0, [1.0] * 9, 0.8, 5) == (1.0, False)
    assert job_pace(1.0, [1.0] * 9, 1.26, 5) == (1.26, True)
    assert job_pace(1.0, [1.0] * 9, 0.79, 5) == (0.79, True)
    assert job_pace(1.0, [1.0] * 9, 9.0, 4) == (1.0, False), "of few gaps"
    assert job_pace(1.0, [1.0] * 9, 10.5, 2) == (10.5, True), "unless it is far off"
    assert job_pace(1.0, [1.0] * 9, 10.0, 2) == job_pace(1.0, [1.0] * 9, 99.0, 1) == (1.0, False)
    assert job_pace(1.0, [], 99.0, 9) == job_pace(1.0, [1.0], None, 9) == (1.0, False)
    assert job_pace(None, [], 7.0, 1) == (7.0, True)
    assert job_pace(0.5, [0.5 + 0.1 * (n % 7) + n / 100 for n in range(60)], None, 0) == (0.5, False)


def test_epochs_are_as_far_apart_as_their_lines_clocks() -> None:
    timed = epochs(2.5, 2.4, 2.3, every_s=11.0, late=True)
    assert [point.mean for point in epochs_apart(timed)] == [11.0, 11.0]
    without = tuple(point._replace(line_t=None) for point in timed)
    assert epochs_apart(without) == (), "read at once, without clocks"
    assert epochs_apart(epochs(2.5, 2.4)) == (), "live lines of one moment"
    again = (*timed, *epochs(2.5, 2.4, every_s=17.0, late=True))
    assert [point.mean for point in epochs_apart(again)] == [17.0], "of the newest training"
    fast = epochs(*[2.5] * 13, every_s=1.0, late=True)
    assert [point.mean for point in epochs_apart(fast)] == [1.0], "whole seconds tell over ten of them"
