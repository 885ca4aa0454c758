"""Stacks that a person asks for: taken beside the keeper's loop, one round at a time, and answered in the end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from supervisor.diagnosis.hang.stack_groups import RankStack, stack_round
from supervisor.keeper.process.child import own_identity
from supervisor.keeper.stalls.stack_rounds import Round, StackBroker, Targets, take_round, write_stacks
from supervisor.policy.health.stall import Activity
from supervisor.sources.stacks.python_stacks import Stack, StackSource
from tests.conftest import not_none, wait_until
from tests.keeper.fakes import Emitted, FakeClock

STUCK = ('Thread 1 (idle): "MainThread"', "    fetch (data.py:41)")


@dataclass
class SlowTaker:
    """Rounds that take until a test lets them end."""

    let_go: threading.Event = field(default_factory=threading.Event)
    artifact: str | None = "artifacts/stacks-1-1.txt"
    taken: int = 0
    inside: int = 0

    def __call__(self, _targets: Targets, _clock: object) -> Round:
        self.taken += 1
        self.inside += 1
        assert self.let_go.wait(10)
        self.inside -= 1
        return Round(
            0.0, stack_round([RankStack(0, "py-spy", STUCK, 1)]), Activity(), "py-spy", self.artifact
        )


def test_the_watch_and_a_person_share_a_round(tmp_path: Path) -> None:
    targets, taker, told = (
        Targets(1, {0: own_identity()}, tmp_path, tmp_path, {}, 0.0, None),
        SlowTaker(),
        Emitted(),
    )
    stacks = StackBroker(told, FakeClock(), lambda: targets, taker)
    stacks.begin(1)
    assert stacks.ask() is not None
    assert wait_until(lambda: taker.inside == 1, 5)
    task = not_none(stacks.ask())
    assert task.poll() is None
    assert stacks.poll() is None
    taker.let_go.set()
    assert wait_until(lambda: not stacks.working, 5)
    assert taker.taken == 1
    assert task.poll() == "artifacts/stacks-1-1.txt"
    assert stacks.poll() is not None, "the watch gets the round, too"
    assert stacks.poll() is None
    assert len(told.facts) == 1
    taker.artifact = None
    unwritten = not_none(stacks.ask())
    assert wait_until(lambda: not stacks.working, 5)
    assert stacks.poll() is not None
    with pytest.raises(OSError, match="could not be written"):
        unwritten.poll()
    assert stacks.ask() is not None
    stacks.begin(2)
    assert wait_until(lambda: not stacks.working, 5)
    assert stacks.poll() is None, "it is of the attempt before"
    stacks.close()


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
    name, at = write_stacks(tmp_path, 2, 1000.5, "head", stacks, extra)
    assert name == "artifacts/stacks-2-1000.txt"
    lines = (tmp_path / "stacks-2-1000.txt").read_text(encoding="utf-8").splitlines()
    assert lines[at[3] - 1] == told[4]
    assert lines[3:9] == list(told)
    assert lines[-1] == "api_key='<redacted>'"
