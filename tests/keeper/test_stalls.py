"""The keeper's watch over an attempt's health, with a clock that a test moves and stacks that it makes up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from supervisor.diagnosis.hang.stack_groups import RankStack, stack_round
from supervisor.job.spec import HangSettings
from supervisor.keeper.monitoring.observations import StepSeen
from supervisor.keeper.process.child import own_identity
from supervisor.keeper.stalls.hang_watch import HangContext
from supervisor.keeper.stalls.health import Health
from supervisor.keeper.stalls.stack_rounds import Round, Targets
from supervisor.policy.health.stall import Activity
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from tests.conftest import wait_until
from tests.keeper.fakes import E, Emitted, FakeClock

WAITS = 'Thread 1 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:1)\n    main (train.py:9)'
LOCKED = "    Condition.wait (threading.py:327)\n    Event.wait (threading.py:629)\n"
STUCK = f'Thread 1 (idle): "MainThread"\n{LOCKED}    fetch (data.py:41)\n    main (train.py:7)'
LOOPS = 'Thread 1 (active): "MainThread"\n    fetch (data.py:41)\n    main (train.py:7)'
# Rank 1 computes where rank 0 waits for it.
MEETS = 'Thread 1 (idle): "MainThread"\n    _engine_run_backward (torch/autograd/graph.py:1)\n    main (train.py:9)'
COMPUTES = 'Thread 1 (active): "MainThread"\n    forward (model.py:{line})\n    main (train.py:7)'
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

    def facts(self, kind: type[E]) -> list[E]:
        return self.told.of(kind)


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
) -> Bench:
    clock, told = FakeClock(), Emitted()
    bench = Bench(clock, Stacks(clock), told)
    targets = Targets(1, {0: own_identity(), 1: own_identity()}, folder, folder, {}, 0.0, "/nowhere/python")
    run = RunPaths(folder)
    run.node().root.mkdir(parents=True, exist_ok=True)
    bench.group_timeout_s = group_timeout_s
    around = HangContext(lambda: bench.watched, lambda: bench.can_resume, lambda: bench.group_timeout_s)
    bench.health = Health(
        run.node(), settings, told, clock, lambda: targets, bench.stacks, around, total_steps
    )
    return bench


def test_a_hang_is_flagged_early_and_ended_late_with_the_rank_that_did_not_come(bench: Bench) -> None:
    bench.steps(30)
    assert not bench.wait(2.5)
    (flagged,) = bench.facts(ev.StallFlagged)
    assert 2.0 <= flagged.waited_s < 3.0
    assert not bench.wait(3.5)
    (advice,) = bench.facts(ev.Advisory)
    assert (advice.code, advice.rank) == ("stall", 1)
    assert "data.py:41" in advice.text
    assert not bench.wait(323.5)
    (countdown,) = bench.facts(ev.HangCountdown)
    assert countdown.t - flagged.since == pytest.approx(300, abs=1)
    assert (countdown.left_s, countdown.rule) == (30.0, "lock_for_ever")
    assert bench.wait(3)
    (hang,) = bench.facts(ev.HangFound)
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
    return [fact.rule for fact in bench.facts(ev.OnlyFlagged)]


def hang_advice(bench: Bench) -> list[str]:
    advice = [fact.code for fact in bench.facts(ev.Advisory)]
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


def works(stacks: Stacks) -> None:
    stacks.texts = (MEETS, COMPUTES.format(line=40 + stacks.taken))


def test_steps_that_are_lengthened_at_once_are_flagged_once_and_nobody_is_advised(bench: Bench) -> None:
    bench.stacks.change = works
    bench.steps(40)
    for _ in range(10):
        assert not bench.wait(4.0)
        bench.steps(1)
    assert len(bench.facts(ev.StallFlagged)) == len(bench.facts(ev.StallEnded)) == 1
    assert bench.facts(ev.StacksTaken), "it was looked at"
    assert not bench.facts(ev.Advisory)


def test_a_rank_that_computes_for_ever_at_one_line_is_told_of_at_the_second_look(bench: Bench) -> None:
    bench.stacks.texts = (MEETS, COMPUTES.format(line=40))
    bench.steps(40)
    assert not bench.wait(3.0)
    assert bench.stacks.taken == 1
    assert not bench.facts(ev.Advisory)
    assert not bench.wait(5.0)
    (advice,) = bench.facts(ev.Advisory)
    assert (advice.code, advice.rank) == ("stall", 1)
    assert not bench.wait(1785), "it may be building an index"
    assert bench.wait(60), "and it is a hang in the end"
