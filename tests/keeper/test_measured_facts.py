"""What the keeper takes from the instrumentation's records: the batch, and steps for a script that prints none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.monitoring import measured_facts
from supervisor.keeper.monitoring.measured_facts import (
    SILENT_S,
    MeasuredFacts,
    PlanCheck,
    StepRatio,
)
from supervisor.keeper.monitoring.observations import FactSeen, Observation, Sampled, StepSeen
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import replay
from supervisor.views.headless.console import event_lines
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
        self.samples: list[Sampled] = []
        check = PlanCheck(job_of(Path("/job"), "train.py"), self.events.append, self.clock, {})
        self.facts = MeasuredFacts(self.events.append, self._observe, self.clock, check)
        self.facts.begin(number, JOB, adopted=adopted)

    def _observe(self, seen: Observation) -> None:
        if isinstance(seen, Sampled):
            self.samples.append(seen)
        else:
            assert isinstance(seen, StepSeen)
            self.steps.append(seen)

    def record(self, rank: int = 0, **record: Any) -> None:
        self.facts.hear(FactSeen(self.clock.wall(), rank, record))

    def train_twice(self, step: int) -> None:
        """A step of two micro-batches."""
        self.train(1, first=step, micro_steps=2, batches=2, samples=16)

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
                self.record(rank, kind="step", step=step, steps=1, **{**took, **more})
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
        own = [seen.values["step"] for seen in attempt.steps if seen.rank == 0]
        assert own == list(range(1, int(SILENT_S / 0.5) + 11)), "none is missing from the charts"


def test_a_silent_script_that_is_soon_over_has_its_last_step() -> None:
    attempt = Attempt()
    attempt.train(4)
    attempt.facts.look(st.RunState(), is_over=True)
    assert [seen.values["step"] for seen in attempt.steps if seen.rank == 0] == [1.0, 2.0, 3.0, 4.0]


def test_of_a_resumed_attempt_only_the_optimizers_own_count_is_a_step() -> None:
    attempt = Attempt(number=2)
    attempt.train(60)
    attempt.facts.look(st.RunState(), is_over=True)
    assert attempt.steps == [], "the process counts from 1 again"
    attempt = Attempt(number=2)
    for step in range(1, 61):
        attempt.train(1, first=step, optimizer_step=130 + step)
    attempt.facts.look(st.RunState(), is_over=True)
    assert {seen.values["step"] for seen in attempt.steps} == {130.0 + step for step in range(1, 61)}


@pytest.mark.parametrize(
    ("timeout_s", "known"),
    [(7200.0, 7200.0), (600.0, None), (None, None), ("x", None), (True, None), (-1, None)],
)
def test_the_timeout_that_a_rank_gave_its_process_groups_is_known(
    timeout_s: object, known: float | None
) -> None:
    attempt = Attempt()
    attempt.record(kind="phase", pid=1, world_size=1, timeout_s=timeout_s)
    assert attempt.facts.group_timeout_s == known


def test_answers_that_change_with_every_look_fill_no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a line of some KB: an answer every half second would make hundreds of MB a day."""
    planned = iter(range(1, 100_000))
    monkeypatch.setattr(measured_facts, "total_steps", lambda *_: next(planned))
    attempt = Attempt()
    attempt.train(2400)  # 20 minutes
    found = [event for event in attempt.events if isinstance(event, ev.BatchMeasured)]
    assert 5 <= len(found) <= 14
    assert found[1].t - found[0].t < 2.0, "what is seen at the start is soon put right"


def logged(attempt: Attempt, step: float, rank: int | None = 0, **values: float) -> dict[str, float]:
    """What is taken of a log's line."""
    line = StepSeen(attempt.clock.wall(), rank, {"step": step, **values}, from_telemetry=False)
    seen = attempt.facts.hear(line)
    assert isinstance(seen, StepSeen)
    return {**seen.values, **seen.measured}


def test_what_was_measured_replaces_the_rates_that_a_log_prints_and_not_its_step() -> None:
    attempt = Attempt()
    logged(attempt, 0.0)
    attempt.train(30, data_wait_s=0.1, memory_peak_bytes=4096)
    seen = logged(attempt, 3000.0, loss=2.5, samples_per_sec=7.0, step_time_s=9.0)
    assert (seen["step"], seen["loss"]) == (3000.0, 2.5)
    assert (seen["samples_per_sec"], seen["memory_peak_bytes"]) == (32.0, 4096.0)
    assert seen["step_time_s"] == 9.0, "what a step of the script is in optimizer steps is not known yet"
    assert {sample.key for sample in attempt.samples} == {"0", "1"}, "rank 1 prints nothing"
    assert attempt.samples[-1].values == {"samples_per_sec": 32.0, "memory_peak_bytes": 4096.0}


def test_the_trainers_own_telemetry_is_not_replaced() -> None:
    attempt = Attempt()
    own = StepSeen(0.0, 0, {"step": 1.0, "samples_per_sec": 7.0}, from_telemetry=True)
    attempt.facts.hear(own)
    attempt.train(60)
    assert attempt.facts.hear(own) == own
    assert (attempt.steps, attempt.samples) == ([], [])


@pytest.mark.parametrize(
    ("every", "per_step", "found"),
    [(5, 1.0, 1.0), (10, 2.0, 0.5), (1, 4.0, 0.25), (8, 0.5, 2.0), (10, 0.1, 10.0)],
    ids=["the same", "micro-steps", "four micro-steps each time", "every second", "epochs of ten"],
)
def test_a_scripts_own_counter_is_compared_with_the_optimizers(
    every: int, per_step: float, found: float
) -> None:
    """`per_step`: by so much it counts on in an optimizer step. It prints a line each `every` of these, half a second long."""
    attempt = Attempt()
    for step in range(1, 700):
        attempt.train(1, first=step, data_wait_s=0.1)
        if step % every == 0:
            values = logged(attempt, 1000 + step * per_step)
    assert values["step_time_s"] == pytest.approx(0.5 * found)
    assert values["data_wait_s"] == pytest.approx(0.1 * found)
    event = attempt.events[-1]
    assert isinstance(event, ev.BatchMeasured)
    assert (event.logged_step, event.counts_steps) == (found, False)
    lines = [line for _, line in event_lines(event)]
    assert any("of the script" in line for line in lines) is (found != 1)


@pytest.mark.parametrize(
    "counter",
    [
        lambda step: step * 1.5,
        lambda step: step % 7,
        lambda step: 3.0,
        lambda step: step * step,
        lambda step: step * 37.3,
    ],
    ids=["no whole number", "begins again all the time", "stands", "grows faster and faster", "tokens"],
)
def test_of_any_other_counter_it_is_not_known_what_it_counts(counter: Any) -> None:
    ratio = StepRatio(None)
    for step in range(1, 2000):
        ratio.log(step * 0.5, counter(step))
        ratio.count(step * 0.5 + 0.1, step)
    assert ratio.value is None


@pytest.mark.parametrize(
    ("name", "accumulation", "planned"),
    [("max_steps", 1, 300), ("total_steps", 1, None), ("max_steps", 2, None), ("eval.max_steps", 1, None)],
    ids=["its name says so", "of a schedule alone", "perhaps micro-steps", "of an evaluation"],
)
def test_the_total_of_a_silent_script(name: str, accumulation: int, planned: int | None) -> None:
    attempt = Attempt()
    attempt.record(kind="setting", by="argparse", name=name, words=[f"--{name}"], value=300, type="int")
    for step in range(1, 51):
        attempt.train(1, first=step) if accumulation == 1 else attempt.train_twice(step)
    attempt.facts.look(st.RunState(), is_over=True)
    event = attempt.events[-1]
    assert isinstance(event, ev.BatchMeasured)
    assert (event.accumulation, event.planned_steps) == (accumulation, planned)
