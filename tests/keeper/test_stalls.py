"""The keeper's watch over an attempt's health, with a clock that a test moves and stacks that it makes up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from supervisor.diagnosis.hang.stack_groups import RankStack, StackRound, stack_round
from supervisor.job.spec import HangSettings
from supervisor.keeper.monitoring.observations import StepSeen
from supervisor.keeper.process.child import own_identity
from supervisor.keeper.stalls.hang_watch import HangContext
from supervisor.keeper.stalls.health import Health
from supervisor.keeper.stalls.stack_rounds import Round, Targets
from supervisor.policy.health.stall import Activity
from supervisor.run import events as ev
from supervisor.run.events import Phase
from supervisor.run.fold import replay
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import RunPaths
from supervisor.run.series import METRICS, SeriesWriter
from tests.conftest import wait_until
from tests.keeper.fakes import Emitted, FakeClock

WAITS = 'Thread 1 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:1)\n    main (train.py:9)'
LOCKED = "    Condition.wait (threading.py:327)\n    Event.wait (threading.py:629)\n"
STUCK = f'Thread 1 (idle): "MainThread"\n{LOCKED}    fetch (data.py:41)\n    main (train.py:7)'
LOOPS = 'Thread 1 (active): "MainThread"\n    fetch (data.py:41)\n    main (train.py:7)'
PAUSES = 'Thread 1 (idle): "MainThread"\n    fetch (data.py:41)\n    main (train.py:7)'


@dataclass
class Stacks:
    """What the next rounds give."""

    clock: FakeClock
    sources: tuple[str, str] = ("py-spy", "py-spy")
    texts: tuple[str, str] = (WAITS, STUCK)
    activity: Activity = field(default_factory=Activity)
    calls: tuple[str | None, str | None] = (None, None)
    cores: tuple[float, float] = (0.0, 0.0)
    here: int | None = 2
    world: int | None = 2
    taken: int = 0
    change: Callable[[Stacks], None] = lambda _self: None

    def __call__(self, _targets: Targets, _clock: object) -> Round:
        self.taken += 1
        self.change(self)
        ranks = [
            RankStack(
                r,
                self.sources[r],
                tuple(self.texts[r].splitlines()),
                1,
                self.calls[r],
                "threading" in self.texts[r] or None,
            )
            for r in (0, 1)
        ]
        return Round(
            self.clock.now,
            stack_round(ranks),
            self.activity,
            "+".join(set(self.sources)),
            "artifacts/x.txt",
            {0: 3, 1: 9},
            cpu_s={rank: cores * self.clock.now for rank, cores in enumerate(self.cores)},
            here=self.here,
            world=self.world,
        )


@dataclass
class Bench:
    """A health watch and what it says. `watched`: a screen is open; `can_resume`: a restart would continue."""

    clock: FakeClock
    stacks: Stacks
    told: Emitted
    watched: bool = False
    can_resume: bool = True
    group_timeout_s: float | None = None
    step: int = 0
    health: Health = field(init=False)

    def steps(self, count: int, gap_s: float = 0.2) -> None:
        for _ in range(count):
            self.clock.now += gap_s
            self.step += 1
            for rank in (0, 1):
                values = {"step": float(self.step), "total_steps": 10_000.0}
                self.health.observe(StepSeen(self.clock.wall(), rank, values, from_telemetry=True))
            assert not self.health.tick()

    def wait(self, seconds: float) -> bool:
        """Let time pass without a sign of life; True once the attempt is to be ended."""
        end = self.clock.now + seconds
        tick_s = 0.1 if seconds <= 100 else 0.5 if seconds <= 1500 else 1.5
        while self.clock.now < end:
            self.clock.now += tick_s
            if self.health.tick():
                return True
            # A round is taken in a thread of its own, in no time at all by this clock.
            assert wait_until(lambda: not self.health.working, 5)
        return False

    def facts(self, kind: type) -> list[ev.Event]:
        return [fact for fact in self.told.facts if isinstance(fact, kind)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = make(tmp_path, HangSettings())
    made.health.begin(1)
    yield made
    made.health.close()


def make(
    folder: Path,
    settings: HangSettings,
    *,
    group_timeout_s: float | None = None,
    total_steps: int | None = None,
    glance: Callable[[Targets], StackRound | None] = lambda _targets: None,
) -> Bench:
    clock, told = FakeClock(), Emitted()
    bench = Bench(clock, Stacks(clock), told)
    targets = Targets(1, {0: own_identity(), 1: own_identity()}, folder, folder, {}, 0.0, "/nowhere/python")
    run = RunPaths(folder)
    run.node().root.mkdir(parents=True, exist_ok=True)
    bench.group_timeout_s = group_timeout_s
    around = HangContext(lambda: bench.watched, lambda: bench.can_resume, lambda: bench.group_timeout_s)
    bench.health = Health(
        run.node(), settings, told, clock, lambda: targets, bench.stacks, around, total_steps, glance
    )
    return bench


def test_a_hang_is_flagged_early_and_ended_late_with_the_rank_that_did_not_come(bench: Bench) -> None:
    bench.steps(30)
    assert not bench.wait(2.5)
    (flagged,) = bench.facts(ev.StallFlagged)
    assert isinstance(flagged, ev.StallFlagged)
    assert 2.0 <= flagged.waited_s < 3.0
    (advice,) = bench.facts(ev.Advisory)
    assert isinstance(advice, ev.Advisory)
    assert (advice.code, advice.rank) == ("stall", 1)
    assert "data.py:41" in advice.text
    assert not bench.wait(327)
    (countdown,) = bench.facts(ev.HangCountdown)
    assert isinstance(countdown, ev.HangCountdown)
    assert countdown.t - flagged.since == pytest.approx(300, abs=1)
    assert (countdown.left_s, countdown.rule) == (30.0, "lock_for_ever")
    assert bench.wait(3)
    (hang,) = bench.facts(ev.HangFound)
    assert isinstance(hang, ev.HangFound)
    assert (hang.ranks, hang.line_at, hang.line, hang.act_s) == ((1,), "data.py:41", 9, 300.0)
    assert hang.t - countdown.t == pytest.approx(30, abs=1)


@pytest.mark.parametrize(("last", "is_flagged"), [(39, True), (40, False), (41, True)])
def test_nothing_stalls_after_the_last_step_that_the_arguments_ask_for(
    tmp_path: Path, last: int, is_flagged: bool
) -> None:
    bench = make(tmp_path, HangSettings(), total_steps=40)
    bench.health.begin(1)
    for step in range(1, last + 1):
        bench.clock.now += 0.2
        bench.health.observe(StepSeen(bench.clock.wall(), 0, {"step": float(step)}, from_telemetry=True))
        assert not bench.health.tick()
    assert not bench.wait(5)
    bench.health.close()
    assert bool(bench.facts(ev.StallFlagged)) == is_flagged


def rules_told(bench: Bench) -> list[str]:
    return [fact.rule for fact in bench.told.facts if isinstance(fact, ev.OnlyFlagged)]


def hang_advice(bench: Bench) -> list[str]:
    advice = [fact.code for fact in bench.told.facts if isinstance(fact, ev.Advisory)]
    return [code for code in advice if code.startswith("hang_")]


def test_helpers_that_work_are_no_hang_until_they_stop(bench: Bench) -> None:
    def change(stacks: Stacks) -> None:
        stacks.activity = Activity(stacks.activity.child_cpu_s + 2.0, 0)

    bench.stacks.change = change
    bench.steps(30)
    assert not bench.wait(600)
    bench.stacks.change = lambda _stacks: None
    assert bench.wait(400)


def test_a_keeper_that_slept_looks_at_the_logs_before_it_speaks(bench: Bench) -> None:
    bench.steps(30)
    bench.clock.now += 300
    assert not bench.health.tick()
    bench.step += 1
    seen = StepSeen(
        bench.clock.wall(), 0, {"step": float(bench.step), "total_steps": 1e4}, from_telemetry=True
    )
    bench.health.observe(seen)
    assert not bench.wait(1.5)
    assert not bench.facts(ev.StallFlagged)


@pytest.mark.parametrize(("from_telemetry", "named"), [(False, [1]), (True, [])])
def test_ranks_that_report_through_one_log_are_looked_at_until_the_slow_one_is_known(
    tmp_path: Path, from_telemetry: bool, named: list[int]
) -> None:
    looks: list[int] = []

    def glance(_targets: Targets) -> StackRound:
        looks.append(1)
        return stack_round(
            [RankStack(r, "py-spy", tuple(text.splitlines())) for r, text in enumerate((WAITS, PAUSES))]
        )

    bench = make(tmp_path, HangSettings(), glance=glance)
    bench.health.begin(1)
    for step in range(120):
        bench.clock.now += 1.0
        values = {"step": float(step)}
        bench.health.observe(StepSeen(bench.clock.wall(), 0, values, from_telemetry=from_telemetry))
        bench.health.tick()
        assert wait_until(lambda: not bench.health.working, 5)
    found = [one for one in bench.facts(ev.SlowRankFound) if isinstance(one, ev.SlowRankFound)]
    assert [one.rank for one in found] == named
    assert (10 <= len(looks) <= 13) == bool(named), "then once a minute"
    bench.health.close()


def test_an_adopting_keeper_knows_the_pace_and_since_when_it_is_silent(tmp_path: Path) -> None:
    bench = make(tmp_path, HangSettings())
    node, clock = RunPaths(tmp_path).node(), bench.clock
    past: list[ev.Event] = [
        ev.LaunchIntended(t=clock.wall() - 40, attempt=1, argv=(), reason="first"),
        ev.AttemptStarted(t=clock.wall() - 40, attempt=1, pid=1, start_time=1.0),
        ev.Progress(t=clock.wall() - 35, attempt=1, step=1),
        ev.PhaseChanged(t=clock.wall() - 35, attempt=1, phase=Phase.STEPPING),
    ]
    journal = JournalWriter(node.journal)
    for fact in past:
        journal.append(fact)
    journal.close()
    series = SeriesWriter(node.series)
    for step in range(1, 26):
        series.append(METRICS, clock.wall() - 35 + 0.2 * step, "job", 1, {"step": float(step)})
    series.close()
    bench.health.begin(1, adopted=replay(past))
    old = StepSeen(clock.wall() - 33, 0, {"step": 10.0}, from_telemetry=True)
    bench.health.observe(old)
    assert not bench.wait(2.5), "first the logs are read again"
    assert not bench.facts(ev.StallFlagged)
    assert not bench.wait(2.0)
    (flagged,) = bench.facts(ev.StallFlagged)
    assert isinstance(flagged, ev.StallFlagged)
    assert flagged.waited_s == pytest.approx(33, abs=3)
    assert flagged.pace_s == pytest.approx(0.2, rel=0.2)
    assert not bench.wait(285), "300 s of silence, and 30 s more"
    assert bench.wait(20)
    bench.health.close()


def test_steps_and_metrics_that_are_told_again_are_no_progress_and_epochs_are(tmp_path: Path) -> None:
    bench = make(tmp_path, HangSettings())
    bench.health.begin(1)

    def log(values: dict[str, float]) -> None:
        bench.health.observe(StepSeen(bench.clock.wall(), 0, values, from_telemetry=False))

    for epoch in range(1, 12):
        bench.clock.now += 1.0
        log({"epoch": epoch / 10, "loss": 2.0})
        assert not bench.health.tick()
    assert not bench.wait(2.0), "a script that counts nothing but epochs"
    assert not bench.facts(ev.StallFlagged)
    for _ in range(3):
        assert not bench.wait(1.0)
        log({"epoch": 1.1, "loss": 2.0})
        log({"loss": 2.0})
    assert len(bench.facts(ev.StallFlagged)) == 1
    assert not bench.facts(ev.StallEnded)
    log({"epoch": 1.2, "loss": 2.0})
    assert not bench.wait(0.2)
    assert len(bench.facts(ev.StallEnded)) == 1
    bench.health.close()
