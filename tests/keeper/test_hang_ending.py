"""What becomes of a flagged silence: healthy pauses are left alone, a hang counts down, a person may keep waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.spec import HangSettings
from supervisor.keeper.monitoring.observations import Reported, StepSeen
from supervisor.policy.health.stall import Activity
from supervisor.run import events as ev
from supervisor.run.events import Phase
from supervisor.run.fold import replay
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS, SeriesWriter
from supervisor.run.state import AttemptState, RunState
from tests.conftest import not_none
from tests.keeper.test_stalls import (
    LOOPS,
    PAUSES,
    STUCK,
    WAITS,
    Bench,
    hang_advice,
    make,
    rules_told,
)

SLEEP = "230"


def made_with(
    folder: Path, settings: HangSettings | None = None, *, group_timeout_s: float | None = None
) -> Bench:
    made = make(folder, settings or HangSettings(), group_timeout_s=group_timeout_s)
    made.health.begin(1)
    return made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = made_with(tmp_path)
    yield made
    made.health.close()


def state_of(bench: Bench) -> RunState:
    """The run as views see it."""
    begun: list[ev.Event] = [
        ev.LaunchIntended(t=0.0, attempt=1, argv=(), reason="first"),
        ev.AttemptStarted(t=0.0, attempt=1, pid=1, start_time=1.0),
    ]
    return replay([*begun, *bench.told.facts])


def attempt_of(bench: Bench) -> AttemptState:
    """Its attempt."""
    return not_none(state_of(bench).attempt)


KERNEL = tuple(
    f"thread 1 'python': state S, waits in {place}, system call 1"
    for place in ("futex_do_wait", "hrtimer_nanosleep")
)
SILENCES: dict[str, tuple[dict[str, Any], float, bool, str]] = {
    "a pause": ({"texts": (WAITS, PAUSES), "calls": ("202", SLEEP)}, 90, False, "late_may_come"),
    "a lock, more than that": ({"cores": (0.0, 0.6)}, 400, False, "late_computes"),
    "a rank on another node": ({"texts": (WAITS, WAITS), "world": 4}, 2000, False, "late_elsewhere"),
    "the kernel alone is asked": ({"sources": ("proc", "proc"), "texts": KERNEL}, 2000, False, "no_python_stacks"),
    "the job asked for an hour": ({"group_timeout_s": 3600.0}, 3600, False, "group_timeout"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SILENCES)
@pytest.mark.fault("recovery", "a healthy job is silent for 90 s", "it is flagged and never ended")
def test_a_silence_is_flagged_at_once_and_ended_only_where_nothing_speaks_against_it(
    bench: Bench, kind: str
) -> None:
    stacks, lasts_s, ends, rule = SILENCES[kind]
    bench.watched = True
    for name, value in stacks.items():
        setattr(bench if name == "group_timeout_s" else bench.stacks, name, value)
    bench.steps(30)
    assert bench.wait(lasts_s) == ends
    (flagged,) = bench.facts(ev.StallFlagged)
    assert flagged.waited_s < 4
    found = [fact.rule for fact in bench.facts(ev.HangFound)]
    assert (found or rules_told(bench))[-1] == rule
    assert bool(hang_advice(bench)) == (lasts_s > 300 and bool(rules_told(bench)))
    if not ends:
        bench.steps(1)
        assert attempt_of(bench).only_flagged is None
        assert bench.stacks.taken < 40


# -- who watches, and who can continue ------------------------------------------------------------------


@pytest.mark.fault("recovery", "an unwatched hang of a run that cannot resume", "it is flagged, not ended")
def test_unwatched_and_without_a_resume_a_hang_is_only_flagged_and_said_once(bench: Bench) -> None:
    bench.can_resume = False
    bench.steps(30)
    assert not bench.wait(1000)
    assert not bench.facts(ev.HangCountdown)
    assert hang_advice(bench) == ["hang_unwatched"]


# -- the countdown -----------------------------------------------------------------------------------


def test_a_person_who_keeps_waiting_does_so_for_this_silence_alone(bench: Bench) -> None:
    bench.watched = True
    bench.steps(30)
    assert not bench.wait(310)
    bench.health.keep_waiting("ada")
    assert not bench.wait(5000)
    (kept,) = bench.facts(ev.HangKept)
    assert kept.by == "ada"
    view = attempt_of(bench)
    assert view.kept == kept
    assert view.countdown is None
    bench.steps(300)
    assert attempt_of(bench).kept is None
    assert not bench.wait(3 * 5310 + 15), "it came back from 5310 s"
    assert len(bench.facts(ev.HangCountdown)) == 2, "a later silence counts down again"
    assert bench.wait(60)


@pytest.mark.fault("recovery", "a job makes progress again during the countdown", "it is not ended")
def test_a_sign_of_life_within_the_countdown_ends_it(bench: Bench) -> None:
    bench.steps(30)
    assert not bench.wait(320)
    assert attempt_of(bench).countdown is not None
    bench.steps(5)
    view = attempt_of(bench)
    assert (view.countdown, view.stall) == (None, None)
    assert not bench.wait(100)


def test_the_last_look_before_the_end_must_show_the_same(bench: Bench) -> None:
    bench.steps(30)
    assert not bench.wait(310)
    bench.stacks.texts = (WAITS, STUCK.replace(":41", ":42"))
    assert not bench.wait(60)
    (withdrawn,) = bench.facts(ev.HangWithdrawn)
    assert withdrawn.rule == "something_moves"
    assert bench.wait(200), "it stands still there too"


# -- a keeper that adopts ------------------------------------------------------------------------------


def left_by_another(bench: Bench, folder: Path, *, countdown_left_s: float, kept: bool = False) -> None:
    """The run as a keeper left it that counted down (or was told to keep waiting) in a silence of 310 s."""
    node, t = RunPaths(folder).node(), bench.clock.wall()
    past: list[ev.Event] = [
        ev.LaunchIntended(t=t - 400, attempt=1, argv=(), reason="first"),
        ev.AttemptStarted(t=t - 400, attempt=1, pid=1, start_time=1.0),
        ev.Progress(t=t - 395, attempt=1, step=1),
        ev.PhaseChanged(t=t - 395, attempt=1, phase=Phase.STEPPING),
        ev.StallFlagged(
            t=t - 308, attempt=1, since=t - 310, waited_s=2.0, stage="step", pace_s=0.2, flag_s=2.0, act_s=300
        ),
        ev.HangCountdown(
            t=t - 10, attempt=1, until=t + countdown_left_s, left_s=30, text="x", rule="lock_for_ever"
        ),
        *([ev.HangKept(t=t - 5, attempt=1, by="ada")] if kept else []),
    ]
    journal, series = JournalWriter(node.journal), SeriesWriter(node.series)
    for fact in past:
        journal.append(fact)
    for step in range(1, 101):
        series.append(METRICS, t - 330 + 0.2 * step, "job", 1, {"step": float(step)})
    journal.close()
    series.close()
    bench.told.facts += past[4:]
    bench.health.begin(1, adopted=replay(past))


def test_an_evaluation_stays_one_when_two_ranks_telemetry_is_read_again(tmp_path: Path) -> None:
    """Rank 0's file is read to its end before rank 1's begins, whose steps are then far below the highest."""
    bench = make(tmp_path, HangSettings())
    node, began_t = RunPaths(tmp_path).node(), bench.clock.wall() - 360
    trains = ev.PhaseChanged(t=began_t, attempt=1, phase=Phase.STEPPING)
    evaluates = ev.PhaseChanged(t=began_t + 300, attempt=1, phase=Phase.EVALUATING)
    past: list[ev.Event] = [
        ev.LaunchIntended(t=began_t - 10, attempt=1, argv=(), reason="first"),
        ev.AttemptStarted(t=began_t - 10, attempt=1, pid=1, start_time=1.0),
        ev.Progress(t=began_t, attempt=1, step=1),
        trains,
        evaluates,
    ]
    with closing(JournalWriter(node.journal)) as journal, closing(SeriesWriter(node.series)) as series:
        for fact in past:
            journal.append(fact)
        for step in range(1, 1501):
            series.append(METRICS, began_t + 0.2 * step, "job", 1, {"step": float(step)})
    bench.health.begin(1, adopted=replay(past))
    for rank in (0, 1):
        bench.health.observe(Reported(trains, rank))
        for step in range(1, 1501):
            values = {"step": float(step)}
            bench.health.observe(StepSeen(began_t + 0.2 * step, rank, values, from_telemetry=True))
        bench.health.observe(Reported(evaluates, rank))
    assert not bench.wait(400), "an evaluation has no pace yet"
    assert not bench.facts(ev.StallFlagged)
    bench.health.close()


@pytest.mark.parametrize("left_s", [20.0, -500.0])
def test_an_adopting_keeper_goes_on_counting_and_looks_twice_itself(tmp_path: Path, left_s: float) -> None:
    bench = make(tmp_path, HangSettings())
    left_by_another(bench, tmp_path, countdown_left_s=left_s)
    assert attempt_of(bench).countdown is not None, "not forgotten"
    began_t = bench.clock.wall() - 330
    for step in range(1, 101):  # telemetry that it reads again, from its start
        for phase in (Phase.LOADING, Phase.STEPPING):
            told = ev.PhaseChanged(t=began_t + 0.2 * step, attempt=1, phase=phase)
            bench.health.observe(Reported(told, 0))
        bench.health.observe(StepSeen(began_t + 0.2 * step, 0, {"step": float(step)}, from_telemetry=True))
    assert not bench.wait(60), "two rounds of its own lie 60 s apart"
    assert attempt_of(bench).countdown is not None
    assert not bench.facts(ev.HangWithdrawn)
    assert not bench.facts(ev.StallEnded)
    assert bench.wait(15)
    bench.health.close()


def test_a_silence_that_ended_while_no_keeper_looked_is_over_and_another_as_long_is_not_ended(
    tmp_path: Path,
) -> None:
    bench = make(tmp_path, HangSettings())
    left_by_another(bench, tmp_path, countdown_left_s=20.0)
    bench.step = 100
    bench.steps(30)
    (ended,) = bench.facts(ev.StallEnded)
    assert ended.stalled_s == pytest.approx(310 + 3, abs=1.0), "until this keeper had read the logs again"
    assert (attempt_of(bench).stall, attempt_of(bench).countdown) == (None, None)
    assert not bench.wait(3 * 310)
    assert bench.wait(3 * 10 + 60)
    bench.health.close()


# -- a person's own limit: --end-hangs with --hang-timeout, --start-timeout -------------------------------


ASKED = HangSettings(act_s=20.0, end_hangs=True, act_given=True)


@pytest.mark.parametrize(
    ("text", "call", "rule"),
    [
        (PAUSES, SLEEP, "no_progress"),
        (STUCK, "202", "lock_for_ever"),
        (WAITS, "202", "all_wait"),
        (LOOPS, None, "computes_for_ever"),
    ],
    ids=["sleep", "lock", "all in collectives", "loop"],
)
def test_with_both_flags_missing_progress_alone_ends_it_after_a_look_at_the_stacks(
    tmp_path: Path, text: str, call: str | None, rule: str
) -> None:
    bench = made_with(tmp_path, ASKED, group_timeout_s=3600.0)
    bench.can_resume = False
    bench.stacks.texts, bench.stacks.calls = (WAITS, text), ("202", call)
    bench.stacks.change = lambda stacks: setattr(stacks, "activity", Activity(100.0 * stacks.taken, 0))
    bench.steps(30)
    assert not bench.wait(19.5)
    assert not bench.facts(ev.HangCountdown)
    assert bench.stacks.taken >= 1
    assert not bench.wait(20)
    assert bench.wait(2)
    (countdown,) = bench.facts(ev.HangCountdown)
    (found,) = bench.facts(ev.HangFound)
    assert (countdown.left_s, found.rule, found.act_s) == (20.0, rule, 20.0), (
        "no longer than the limit itself"
    )
    assert found.artifact is not None
    bench.health.close()


def test_without_a_sample_of_its_steps_an_adopted_silence_begins_now(tmp_path: Path) -> None:
    bench = make(tmp_path, ASKED)
    node, t = RunPaths(tmp_path).node(), bench.clock.wall()
    past: list[ev.Event] = [
        ev.LaunchIntended(t=t - 4000, attempt=1, argv=(), reason="first"),
        ev.AttemptStarted(t=t - 4000, attempt=1, pid=1, start_time=1.0),
        ev.Progress(t=t - 3990, attempt=1, step=1),
    ]
    journal = JournalWriter(node.journal)
    for fact in past:
        journal.append(fact)
    journal.close()
    bench.health.begin(1, adopted=replay(past))
    assert not bench.wait(19)
    assert not bench.facts(ev.HangCountdown)
    bench.health.close()
