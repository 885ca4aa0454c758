"""The keeper's watch over an attempt's health, with a clock that a test moves and stacks that it makes up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from supervisor.diagnosis.hang.stack_groups import RankStack, stack_round
from supervisor.job.spec import HangSettings
from supervisor.keeper.monitoring.observations import LinesSeen, Observation, Reported, Sampled, StepSeen
from supervisor.keeper.process.child import own_identity
from supervisor.keeper.stalls.hang_watch import HangContext
from supervisor.keeper.stalls.health import Health
from supervisor.keeper.stalls.stack_rounds import Round, Targets
from supervisor.policy.health.stall import Activity, printed
from supervisor.run import events as ev
from supervisor.run.events import Phase
from supervisor.run.fold import replay
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.series import GPU, HOST, RANKS
from tests.conftest import wait_until
from tests.keeper.fakes import E, Emitted, FakeClock, evidence

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
    assert (flagged.attempt, flagged.stage, flagged.flag_s, flagged.act_s) == (1, "step", 2.0, 300.0)
    assert flagged.pace_s == pytest.approx(0.2)
    assert flagged.waited_s == pytest.approx(2.0, abs=0.11)
    assert flagged.since == pytest.approx(bench.clock.epoch + 1006.0)
    (advice,) = bench.facts(ev.Advisory)
    (taken,) = bench.facts(ev.StacksTaken)
    assert (advice.code, advice.rank) == ("stall", 1)
    assert advice.text == f"No progress for 2 s (normally 0.2 s): {taken.text}"
    assert "data.py:41" in taken.text
    groups = (
        ev.RanksAt(ranks=(1,), doing="own", what="in Event.wait()", line_at="data.py:41", lines=(9,)),
        ev.RanksAt(ranks=(0,), doing="collective", what="in all_reduce", line_at="train.py:9", lines=(3,)),
    )
    shown = ((1,), "data.py:41", "artifacts/x.txt", "py-spy", groups)
    assert (taken.odd, taken.line_at, taken.artifact, taken.source, taken.groups) == shown
    assert not bench.wait(327)
    (countdown,) = bench.facts(ev.HangCountdown)
    assert countdown.t - flagged.since == pytest.approx(300, abs=1)
    assert (countdown.left_s, countdown.rule) == (30.0, "lock_for_ever")
    assert bench.wait(3)
    (hang,) = bench.facts(ev.HangFound)
    assert (hang.ranks, hang.line_at, hang.line, hang.act_s) == ((1,), "data.py:41", 9, 300.0)
    assert (hang.text, hang.artifact, hang.groups) == (taken.text, "artifacts/x.txt", groups)
    assert hang.rule == "lock_for_ever"
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


# -- what other observations come to -------------------------------------------------------------------


def measured(rank: int, own_s: float) -> Sampled:
    return Sampled(0.0, RANKS, str(rank), {"step_time_s": 1.0, "compute_s": own_s})


def told(event: ev.PhaseChanged | ev.CheckpointCommitted, rank: int = 0) -> Reported:
    return Reported(event, rank)


THROTTLED = Sampled(0.0, GPU, "3", {"throttle": 1.0})
NO_SPACE = evidence("No space left on device", 1, t=0.0, failure=FailureClass.DISK_FULL)
FULL = Sampled(0.0, HOST, "machine", {"disk_free_bytes": 1.0})
SAVED = told(ev.CheckpointCommitted(t=0.0, attempt=1, step=1, path=__file__))
ADVISED: dict[str, tuple[list[Observation], list[tuple[str, int | None]]]] = {
    "a GPU that is slowed down": ([THROTTLED] * 30, [("gpu_throttled_3", None)]),
    "and not for long enough": ([THROTTLED] * 29, []),
    "a disk that is full before a checkpoint": ([FULL, SAVED], [("disk_before_checkpoint", None)]),
    "the disk as another process sees it": ([replace(FULL, key="0"), SAVED], []),
    "a save that failed": ([NO_SPACE, StepSeen(2e9, 1, {"step": 1.0}, from_telemetry=True)], [("checkpoint_not_saved", 1)]),
    "a rank that takes longer": ([measured(0, 0.1), measured(1, 0.9)] * 10, [("straggler", 1)]),
    "two ranks that take as long": ([measured(0, 0.9), measured(1, 0.9)] * 10, []),
    "a rank without a number": ([replace(measured(0, 1.0), key="x")] * 10, []),
}  # fmt: skip


@pytest.mark.parametrize("kind", ADVISED)
def test_readings_and_reports_come_to_advice(bench: Bench, kind: str) -> None:
    seen, advice = ADVISED[kind]
    for one in seen:
        bench.health.observe(one)
    bench.clock.now += 10.0
    assert not bench.health.tick()
    assert [(one.code, one.rank) for one in bench.facts(ev.Advisory)] == advice


def test_a_slow_rank_is_told_of_as_it_changes_and_not_again_by_an_adopting_keeper(
    bench: Bench, tmp_path: Path
) -> None:
    def looked(slow: int | None, health: Bench) -> list[ev.SlowRankFound]:
        for _ in range(10):
            for rank in (0, 1):
                health.health.observe(measured(rank, 0.9 if rank == slow else 0.1234567))
        health.clock.now += 10.0
        assert not health.health.tick()
        return health.facts(ev.SlowRankFound)

    (first,) = looked(1, bench)
    assert (first.rank, first.lost_s, first.step_s) == (1, 0.7765, 1.0)
    assert looked(1, bench) == [first]
    begun: list[ev.Event] = [
        ev.LaunchIntended(t=0.0, attempt=1, argv=(), reason="first"),
        ev.AttemptStarted(t=0.0, attempt=1, pid=1, start_time=1.0),
    ]
    again = make(tmp_path, HangSettings())
    again.health.begin(1, adopted=replay([*begun, *bench.told.facts]))
    assert looked(1, again) == []
    assert not again.facts(ev.Advisory), "it was said"
    over = looked(None, again)
    assert [(one.rank, one.lost_s, one.step_s) for one in over] == [(None, 0.0, 0.0)]
    again.health.close()


PHASES: dict[str, tuple[list[tuple[int, Phase]], bool]] = {
    "of rank 0": ([(0, Phase.EVALUATING)], False),
    "of another rank, where rank 0 reports none": ([(2, Phase.EVALUATING)], False),
    "of a rank beside the first that reported any": ([(2, Phase.STEPPING), (3, Phase.EVALUATING)], True),
    "of another rank beside rank 0": ([(2, Phase.STEPPING), (0, Phase.STEPPING), (2, Phase.EVALUATING)], True),
}  # fmt: skip


@pytest.mark.parametrize("whose", PHASES)
def test_one_ranks_phases_count_for_all(bench: Bench, whose: str) -> None:
    """An evaluation has no pace yet, so nothing is flagged in it."""
    bench.steps(30)
    phases, is_flagged = PHASES[whose]
    for rank, phase in phases:
        bench.health.observe(told(ev.PhaseChanged(t=bench.clock.wall(), attempt=1, phase=phase), rank))
    assert not bench.wait(4.0)
    assert bool(bench.facts(ev.StallFlagged)) == is_flagged


def saved(bench: Bench, ago_s: float, written_ago_s: float | None) -> ev.CheckpointCommitted:
    t = bench.clock.wall()
    written_t = None if written_ago_s is None else t - written_ago_s
    return ev.CheckpointCommitted(t=t - ago_s, attempt=1, step=1, path="c", found=True, written_t=written_t)


def line(bench: Bench, ago_s: float, *, again: bool = False) -> LinesSeen:
    return LinesSeen(bench.clock.wall() - ago_s, "log", (printed(b"epoch"),), again)


SIGNS: dict[str, tuple[Callable[[Bench], None], float]] = {
    "found": (lambda bench: bench.health.saved(saved(bench, 0.0, None)), 2.0),
    "found before": (lambda bench: bench.health.saved(saved(bench, 0.5, None)), 1.5),
    "written before": (lambda bench: bench.health.saved(saved(bench, 0.0, 1.0)), 1.0),
    "reported": (lambda bench: bench.health.observe(told(saved(bench, 0.5, None))), 1.5),
    "a new line": (lambda bench: bench.health.observe(line(bench, 0.5)), 1.5),
    "a line read again": (lambda bench: bench.health.observe(line(bench, 0.0, again=True)), 0.3),
}


@pytest.mark.parametrize(("sign", "waited_s"), SIGNS.values(), ids=SIGNS)
def test_checkpoints_and_new_lines_put_a_flag_off(
    bench: Bench, sign: Callable[[Bench], None], waited_s: float
) -> None:
    bench.steps(30)
    assert not bench.wait(1.7)
    sign(bench)
    assert not bench.wait(waited_s - 0.15)
    assert not bench.facts(ev.StallFlagged)
    assert not bench.wait(0.3)
    assert bench.facts(ev.StallFlagged)
