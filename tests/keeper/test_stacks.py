"""Stacks that a person asks for: taken beside the keeper's loop, one round at a time, and answered in the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from supervisor.diagnosis.hang.stack_groups import RankStack, stack_round
from supervisor.keeper.base.background import BackgroundTask
from supervisor.keeper.base.control_input import CONTROL_INTERVAL_S, ControlInput, Refused
from supervisor.keeper.process.child import own_identity
from supervisor.keeper.stalls.stack_rounds import Round, StackBroker, Targets, take_round, write_stacks
from supervisor.policy.health.stall import Activity
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.fold import fold
from supervisor.run.paths import RunPaths
from supervisor.run.state import Running, RunState
from supervisor.sources.stacks.python_stacks import Stack, StackSource
from tests.conftest import wait_until
from tests.keeper.fakes import Emitted, FakeClock

STUCK = ('Thread 1 (idle): "MainThread"', "    fetch (data.py:41)")


@dataclass
class SlowTaker:
    """Rounds that take until a test lets them end. `most`: how many were under way at once."""

    let_go: threading.Event = field(default_factory=threading.Event)
    artifact: str | None = "artifacts/stacks-1-1.txt"
    taken: int = 0
    inside: int = 0
    most: int = 0

    def __call__(self, _targets: Targets, _clock: object) -> Round:
        self.taken += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        assert self.let_go.wait(10)
        self.inside -= 1
        return Round(
            0.0, stack_round([RankStack(0, "py-spy", STUCK, 1)]), Activity(), "py-spy", self.artifact
        )


@dataclass
class Actor:
    """Says what it was made to do, and looks at stacks for as long as a test wants."""

    stacks: StackBroker
    told: Emitted
    state: RunState = field(
        default_factory=lambda: RunState(condition=Running(attempt=1, phase=ev.Phase.STEPPING))
    )

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        self.told(event)
        self.state = fold(self.state, event)

    def dump_stacks(self) -> BackgroundTask[Any, str]:
        task = self.stacks.ask()
        if task is None:
            raise Refused("no rank is known yet")
        return task


@dataclass
class Bench:
    """ControlInput over a desk whose rounds a test lets end."""

    run: RunPaths
    clock: FakeClock
    taker: SlowTaker
    stacks: StackBroker
    told: Emitted
    control: ControlInput

    def look(self) -> None:
        self.clock.now += CONTROL_INTERVAL_S
        self.control.look()

    def answers(self) -> list[ev.Event]:
        return [fact for fact in self.told.facts if isinstance(fact, ev.RequestDone | ev.RequestRefused)]

    def files(self) -> list[str]:
        return [request.id for request in control.pending(self.run.control)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    run, clock, told, taker = RunPaths(tmp_path), FakeClock(), Emitted(), SlowTaker()
    run.control.mkdir()
    targets = Targets(1, {0: own_identity()}, tmp_path, tmp_path, {}, 0.0, None)
    stacks = StackBroker(told, clock, lambda: targets, taker)
    stacks.begin(1)
    actor = Actor(stacks, told)
    yield Bench(run, clock, taker, stacks, told, ControlInput(run, actor, clock, actor=None))
    taker.let_go.set()
    stacks.close()


def test_a_request_for_stacks_keeps_nobody_waiting_and_is_answered_when_they_are_there(bench: Bench) -> None:
    asked = control.send(bench.run.control, RequestKind.STACKS)
    bench.look()
    note = control.send(bench.run.control, RequestKind.NOTE, args=control.RequestArgs(text="hello"))
    bench.look()
    assert wait_until(lambda: bench.taker.inside == 1, 5)
    (answer,) = bench.answers()
    assert isinstance(answer, ev.RequestDone)
    assert answer.request_id == note, "answered while the stacks are still being taken"
    assert bench.files() == [asked], "what is not answered stays for a keeper that may adopt the run"
    bench.taker.let_go.set()
    assert wait_until(lambda: not bench.stacks.working, 5)
    bench.look()
    answer = bench.answers()[-1]
    assert isinstance(answer, ev.RequestDone)
    assert (answer.request_id, answer.detail) == (asked, "artifacts/stacks-1-1.txt")
    assert bench.files() == []
    assert sum(isinstance(fact, ev.StacksTaken) for fact in bench.told.facts) == 1
    bench.look()
    assert len(bench.answers()) == 2


def test_the_watch_and_a_person_never_hold_one_process_at_the_same_time(bench: Bench) -> None:
    assert bench.stacks.start()
    assert wait_until(lambda: bench.taker.inside == 1, 5)
    task = bench.stacks.ask()
    assert task is not None
    assert task.poll() is None
    bench.taker.let_go.set()
    assert wait_until(lambda: not bench.stacks.working, 5)
    assert (bench.taker.taken, bench.taker.most) == (2, 1)
    assert bench.stacks.poll() is not None, "the watch gets its own round"
    assert task.poll() == "artifacts/stacks-1-1.txt"


def test_stacks_that_could_not_be_written_are_refused_with_the_reason(bench: Bench) -> None:
    bench.taker.artifact = None
    bench.taker.let_go.set()
    control.send(bench.run.control, RequestKind.STACKS)
    bench.look()
    assert wait_until(lambda: not bench.stacks.working, 5)
    bench.look()
    (answer,) = bench.answers()
    assert isinstance(answer, ev.RequestRefused)
    assert "could not be written" in answer.reason


def test_a_keeper_that_leaves_answers_what_it_is_still_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.keeper.base.control_input.LAST_ANSWER_S", 0.01)
    control.send(bench.run.control, RequestKind.STACKS)
    bench.look()
    bench.control.close()
    (answer,) = bench.answers()
    assert isinstance(answer, ev.RequestRefused)
    assert "left" in answer.reason
    assert bench.files() == []


def test_two_rounds_within_a_second_are_two_files(tmp_path: Path) -> None:
    me = Targets(1, {0: own_identity()}, tmp_path, tmp_path, {}, 0.0, None)
    clock = FakeClock()
    names = {take_round(me, clock).artifact for _ in range(2)}
    assert len(names) == 2
    assert all(name is not None and (tmp_path / Path(name).name).is_file() for name in names)


def test_the_users_own_innermost_frame_is_pointed_at_and_secrets_are_taken_out(tmp_path: Path) -> None:
    told = (
        'Thread 9 (idle): "Loader"',
        "    read (/job/train.py:2)",
        'Thread 7 (idle): "MainThread"',
        "    wait (/usr/lib/python3.11/threading.py:331)",
        "    main (/job/train.py:2)",
        "    <module> (/job/train.py:5)",
    )
    stacks = {3: Stack(own_identity(), StackSource.PY_SPY, told)}
    extra = ["api_key='sk-aaaaaaaaaaaaaaaaaaaaaaaa'"]
    written = write_stacks(tmp_path, 2, 1000.5, "head", stacks, extra)
    assert written.name == "artifacts/stacks-2-1000.txt"
    lines = (tmp_path / "stacks-2-1000.txt").read_text(encoding="utf-8").splitlines()
    assert lines[written.lines[3] - 1] == told[4]
    assert lines[3:9] == list(told)
    assert lines[-1] == "api_key='<redacted>'"
