"""A step that is suddenly long is no news: the watch flags it, looks, and learns; it advises where somebody is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.job.spec import HangSettings
from supervisor.run import events as ev
from tests.keeper.test_stalls import Bench, Stacks, make

MEETS = 'Thread 1 (idle): "MainThread"\n    _engine_run_backward (torch/autograd/graph.py:1)\n    main (train.py:9)'
COMPUTES = 'Thread 1 (active): "MainThread"\n    forward (model.py:{line})\n    main (train.py:7)'


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = make(tmp_path, HangSettings())
    made.health.begin(1)
    made.stacks.texts = (MEETS, COMPUTES.format(line=40))
    yield made
    made.health.close()


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
    bench.steps(40)
    assert not bench.wait(3.0)
    assert bench.stacks.taken == 1
    assert not bench.facts(ev.Advisory)
    assert not bench.wait(5.0)
    (advice,) = bench.facts(ev.Advisory)
    assert isinstance(advice, ev.Advisory)
    assert (advice.code, advice.rank) == ("stall", 1)
    assert not bench.wait(1785), "it may be building an index"
    assert bench.wait(60), "and it is a hang in the end"
