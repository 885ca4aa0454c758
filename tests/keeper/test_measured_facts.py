"""What the keeper takes from the instrumentation's records: the batch, and steps for a script that prints none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.knobs.measured import MeasuredBatch, measured_batch
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.monitoring import measured_facts
from supervisor.keeper.monitoring.measured_facts import MOST_LOOK_S, SILENT_S, MeasuredFacts
from supervisor.keeper.monitoring.observations import FactSeen, Observation, StepSeen
from supervisor.keeper.monitoring.plan_check import PlanCheck
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import fold, replay
from supervisor.sources.telemetry import measured_record
from supervisor.views.console import event_lines
from tests.keeper.fakes import FakeClock, job_of

JOB = JobSpec(name="job", entry_kind=EntryKind.SCRIPT, entry="train.py", nproc_per_node=2)

LOADER: dict[str, Any] = {"kind": "loader", "id": 1, "batch_size": 8, "workers": 0, "at": "/job/train.py:9"}
SETTING: dict[str, Any] = {"kind": "setting", "by": "argparse", "name": "batch_size", "words": ["-b", "--batch-size"], "value": 8, "type": "int", "given": True}  # fmt: skip


class Attempt:
    """One attempt's records, and what became of them."""

    def __init__(self, *, number: int = 1, adopted: st.RunState | None = None) -> None:
        self.clock = FakeClock()
        self.events: list[ev.Event] = []
        self.steps: list[StepSeen] = []
        check = PlanCheck(job_of(Path("/job"), "train.py"), self.events.append, self.clock, {})
        self.facts = MeasuredFacts(self.events.append, self._observe, self.clock, check)
        self.facts.begin(number, JOB, adopted=adopted)

    def _observe(self, seen: Observation) -> None:
        assert isinstance(seen, StepSeen)
        self.steps.append(seen)

    def record(self, rank: int = 0, **record: Any) -> None:
        self.facts.hear(FactSeen(self.clock.wall(), rank, record))

    def train(self, steps: int, *, first: int = 1, ranks: int = 2, **more: Any) -> None:
        for step in range(first, first + steps):
            for rank in range(ranks):
                if step == 1:
                    self.record(rank, kind="phase", pid=100 + rank, world_size=ranks, source="instrument")
                    self.record(rank, **SETTING)
                    self.record(rank, **LOADER)
                shape = {"kind": "shape", "step": step - 1, "loader": 1, "shapes": [[8, 16], [8]]}
                self.record(rank, **shape, of="batch")
                self.record(rank, **shape, of="forward", module="Net")
                took = {"micro_steps": 1, "batches": 1, "samples": 8, "step_time_s": 0.5}
                self.record(rank, kind="step", step=step, steps=1, **took, **more)
            self.clock.now += 0.5
            self.facts.look(st.RunState())


def test_the_batch_and_its_setting_are_journalled_once_when_three_steps_agree() -> None:
    attempt = Attempt()
    attempt.train(2)
    assert attempt.events == []
    attempt.train(30, first=3)
    [event] = attempt.events
    assert isinstance(event, ev.BatchMeasured)
    assert event.batch == BatchSpec(8, 1, 2)
    assert (event.setting, event.scope, event.global_batch) == ("--batch-size", "per_rank", 16)
    assert event.accumulation_setting == "none"
    [(_, line)] = event_lines(event)
    assert line == "measured: micro-batch 8 × accumulation 1 × 2 ranks = global batch 16, set by --batch-size"


def test_what_a_first_forward_shows_is_journalled_at_the_end() -> None:
    attempt = Attempt()
    attempt.record(kind="phase", pid=1, world_size=1)
    attempt.record(**SETTING)
    attempt.record(**LOADER)
    attempt.record(kind="shape", step=0, loader=1, shapes=[[8, 16]], of="batch")
    attempt.record(kind="shape", step=0, loader=1, shapes=[[8, 16]], of="forward", module="Net")
    attempt.facts.look(st.RunState())
    assert attempt.events == []
    attempt.facts.look(st.RunState(), is_over=True)
    [event] = attempt.events
    assert isinstance(event, ev.BatchMeasured)
    assert (event.micro_batch, event.accumulation, event.setting, event.batch) == (
        8,
        None,
        "--batch-size",
        None,
    )


def test_an_adopting_keeper_does_not_repeat_what_stands_in_the_journal() -> None:
    first = Attempt()
    first.train(5)
    launch = ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first launch")
    state = replay([launch, *first.events])
    assert state.attempt is not None
    assert state.attempt.shown_batch == BatchSpec(8, 1, 2)
    again = Attempt(adopted=state)
    again.train(5)
    assert again.events == []


def test_the_measured_batch_is_shown_where_the_planned_one_differs() -> None:
    launch = ev.LaunchIntended(t=1.0, attempt=1, argv=(), reason="first launch", batch=BatchSpec(16, 1, 2))
    state = replay([launch])
    state = fold(state, ev.BatchMeasured(t=2.0, attempt=1, micro_batch=8, accumulation=1, world_size=2))
    assert state.attempt is not None
    assert state.attempt.shown_batch == BatchSpec(8, 1, 2)


@pytest.mark.parametrize("logs", [False, True], ids=["silent", "logs its steps"])
def test_steps_are_counted_for_a_script_that_prints_none(logs: bool) -> None:
    attempt = Attempt()
    if logs:
        attempt.facts.hear(StepSeen(0.0, 0, {"step": 10.0, "loss": 3.0}, from_telemetry=False))
    attempt.train(int(SILENT_S / 0.5))
    assert attempt.steps == []
    attempt.train(10, first=int(SILENT_S / 0.5) + 1)
    assert bool(attempt.steps) is not logs
    if not logs:
        newest = attempt.steps[-1]
        assert newest.values["step"] == SILENT_S / 0.5 + 10
        assert newest.values["samples_per_sec"] == pytest.approx(32.0), (
            "8 samples in 0.5 s on each of 2 ranks"
        )


def test_a_silent_script_that_is_soon_over_has_its_last_step() -> None:
    attempt = Attempt()
    attempt.train(4)
    attempt.facts.look(st.RunState(), is_over=True)
    assert [seen.values["step"] for seen in attempt.steps] == [4.0]


def test_of_a_resumed_attempt_only_the_optimizers_own_count_is_a_step() -> None:
    attempt = Attempt(number=2)
    attempt.train(60)
    attempt.facts.look(st.RunState(), is_over=True)
    assert attempt.steps == [], "the process counts from 1 again"
    attempt = Attempt(number=2)
    attempt.train(60, optimizer_step=130)
    attempt.facts.look(st.RunState(), is_over=True)
    assert {seen.values["step"] for seen in attempt.steps} == {130.0}


def test_what_is_no_record_breaks_nothing() -> None:
    attempt = Attempt()
    for strange in (
        {"kind": "step"},
        {"kind": "step", "step": "x", "steps": {}},
        {"kind": "shape", "shapes": 3},
        {"kind": "new"},
    ):
        attempt.record(**strange)
    attempt.facts.look(st.RunState(), is_over=True)
    assert attempt.events == []
    assert attempt.steps == []


def test_settled_answers_are_derived_again_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[float] = []
    attempt = Attempt()

    def count(*args: Any, **named: Any) -> MeasuredBatch:
        derived.append(attempt.clock.now)
        return measured_batch(*args, **named)

    monkeypatch.setattr(measured_facts, "measured_batch", count)
    attempt.train(2400)  # 20 minutes
    assert len(derived) < 60
    assert all(after - before <= MOST_LOOK_S + 0.5 for before, after in pairwise(derived))
    assert len(attempt.events) == 1


def test_the_rate_of_samples_counts_ranks_on_other_nodes() -> None:
    attempt = Attempt()
    attempt.record(0, kind="phase", pid=100, world_size=8)
    attempt.train(60, first=2, ranks=1)
    assert attempt.steps[-1].values["samples_per_sec"] == pytest.approx(128.0), (
        "8 samples in 0.5 s on each of 8 ranks"
    )


@pytest.mark.parametrize(
    "line", [b'{"kind":"step","step":1' + b"0" * 400 + b"}", b'{"kind":3}', b"[]", b'{"kind":"st']
)
def test_a_line_that_is_no_record_is_left_out(line: bytes) -> None:
    assert measured_record(line) is None
