"""What the page of step times shows, from records that grow while it is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.state import RunState
from supervisor.views.model.step_times import FIRST_LOOK_S, LOOK_S, StepTimes, StepTimesReader
from tests.keeper.fakes import run_in

T = 1_800_000_000.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def launched(place: Path, attempts: int) -> tuple[RunPaths, RunState]:
    events = [
        ev.LaunchIntended(t=T + number, attempt=number, argv=("train.py",), reason="launch")
        for number in range(1, attempts + 1)
    ]
    run = run_in(place, *events)
    return run, read_state(run.node().journal)


def add(run: RunPaths, attempt: int, rank: int, steps: Sequence[int], waits_s: float) -> None:
    folder = run.node().attempt(attempt).telemetry
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"measured{rank}.jsonl").open("a") as file:
        for step in steps:
            record = {"kind": "step", "step": step, "steps": 10, "step_time_s": 2.0, "data_wait_s": waits_s}
            file.write(json.dumps(record) + "\n")


def test_times_are_derived_from_what_was_appended(tmp_path: Path, clock: Clock) -> None:
    run, state = launched(tmp_path, 1)
    add(run, 1, 0, range(20, 60, 10), 0.0)
    reader = StepTimesReader(run, clock)
    assert reader.refresh(state) == StepTimes(), "the first frame comes first"
    clock.now += FIRST_LOOK_S
    first = reader.refresh(state)
    assert (first.steps, first.each_s, first.ranks, first.found) == (40, 0.2, 1, ())

    add(run, 1, 0, range(60, 200, 10), 1.5)
    assert reader.refresh(state) is first
    clock.now += LOOK_S
    second = reader.refresh(state)
    assert second.steps == 180
    assert [(one.cause, one.text) for one in second.found] == [("data", "waiting for data on the process")]
    clock.now += LOOK_S
    assert reader.refresh(state) is second, "nothing was appended"


def test_a_new_attempt_begins_anew(tmp_path: Path, clock: Clock) -> None:
    run, state = launched(tmp_path / "one", 1)
    add(run, 1, 0, range(20, 90, 10), 1.5)
    reader = StepTimesReader(run, clock)
    clock.now += FIRST_LOOK_S
    assert reader.refresh(state).steps == 70
    _, later = launched(tmp_path / "two", 2)
    clock.now += LOOK_S
    assert reader.refresh(later) == StepTimes()
    add(run, 2, 0, range(20, 50, 10), 0.0)
    add(run, 2, 1, range(20, 50, 10), 0.0)
    clock.now += LOOK_S
    assert (reader.refresh(later).steps, reader.refresh(later).ranks) == (30, 2)


def test_a_file_that_was_rotated_is_read_from_its_start(tmp_path: Path, clock: Clock) -> None:
    run, state = launched(tmp_path, 1)
    add(run, 1, 0, range(20, 220, 10), 0.0)
    reader = StepTimesReader(run, clock)
    clock.now += FIRST_LOOK_S
    reader.refresh(state)
    file = run.node().attempt(1).telemetry / "measured0.jsonl"
    file.rename(file.with_suffix(".jsonl.1"))
    add(run, 1, 0, [220, 230], 0.0)
    clock.now += LOOK_S
    assert reader.refresh(state).steps == 220
