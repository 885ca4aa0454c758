"""`--nnodes MIN:MAX` with fewer nodes than MAX: started without those that do not come, at the same global batch, or refused."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind, JobSpec, Knobs, KnobScope, Timing
from supervisor.keeper.planning.launch_plans import batch_on
from supervisor.run import heartbeat
from supervisor.run import node_files as nd
from supervisor.run import state as st
from supervisor.run.heartbeat import Heartbeat
from supervisor.run.next_job import NextJob
from supervisor.run.node_files import NodePhase, Order, Orders, Report, Want, write_report
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.records import FailureClass
from tests.conftest import wait_until
from tests.keeper.nodes.cluster import Cluster, cluster

pytestmark = pytest.mark.timeout(120)

DONE = "import sys\nprint('step 1/1 loss 1.0', *sys.argv, flush=True)"
WAITS = "import time\nprint('step 1/9 loss 1.0', flush=True)\ntime.sleep(600)"
KNOBS = Knobs(batch="--batch", accumulation="--steps", batch_scope=KnobScope.PER_RANK)
SOON = Timing(grace_s=2.0, death_grace_s=0.5, hold_s=50.0, node_timeout_s=1.5)
ELASTIC = {
    "nnodes": "2:3",
    "batch": BatchSpec(2, 2, 3),
    "knobs": KNOBS,
    "entry_args": ("--batch", "2", "--steps", "2"),
    "timing": SOON,
}


@pytest.fixture(autouse=True)
def soon_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SILENT_S", 1.5)


# Waits for the others as torchrun does, at the first attempt.
WAITS_FOR_ALL = """
if os.environ["STOKER_ATTEMPT"] == "1":
    import time
    time.sleep(600)
"""


def reason_of(one: Cluster) -> str:
    condition = one.state().condition
    assert isinstance(condition, st.Finished)
    return condition.reason


@pytest.mark.fault(
    "nodes",
    "one of `--nnodes 2:3` nodes does not come",
    "after --node-timeout the run starts on two, with the global batch of three",
)
def test_a_run_starts_without_a_node_that_does_not_come(tmp_path: Path) -> None:
    with cluster(tmp_path, DONE, nodes=3, **ELASTIC) as one:
        one.start(0, 2)
        assert one.wait(0, 2) == [0, 0]
        (first,) = one.state().attempts
        assert first.batch == BatchSpec(2, 3, 2)
        assert first.reason == (
            "first launch; without node 1: micro-batch 2 unchanged, accumulation 2 → 3, ranks 3 → 2, global batch 12 unchanged"
        )
        for node, rank in ((0, 0), (2, 1)):
            argv = one.state(node).attempts[0].argv
            assert argv[-4:] == ("--batch", "2", "--steps", "3")
            assert {"--nnodes=2", f"--node-rank={rank}"} <= set(argv)


@pytest.mark.fault(
    "nodes",
    "a node is lost after the launch, before the ranks have met",
    "the attempt is ended after --node-timeout, not after torchrun's 15 minutes; `--nnodes 2:3` continues with two",
)
def test_a_node_that_is_gone_before_the_ranks_have_met_is_not_waited_for(tmp_path: Path) -> None:
    with cluster(tmp_path, DONE, nodes=3, **ELASTIC) as one:
        python = tmp_path / "fake-python"
        head, imports, rest = python.read_text(encoding="utf-8").split("\n", 2)
        python.write_text(f"{head}\n{imports}\n{WAITS_FOR_ALL}\n{rest}", encoding="utf-8")
        lost = one.run.node(2)
        make_private(lost.root)
        beats = Heartbeat(lost.heartbeat, "lost")
        write_report(lost, Report(node=2, session="lost", host="c", nnodes=3, phase=NodePhase.READY))
        one.start(0, 1)

        def is_launched() -> bool:
            beats.beat(time.monotonic())
            return bool(one.state().attempts)

        assert wait_until(is_launched, 30)
        assert one.wait(0, 1) == [0, 0]
        first, second = one.state().attempts
        assert first.verdict is not None
        assert first.verdict.failure is FailureClass.RENDEZVOUS
        assert first.stop is not None
        assert first.stop.by == "node 2 is gone"
        assert second.batch == BatchSpec(2, 3, 2)


@pytest.mark.parametrize(
    ("changes", "nodes", "why"),
    [
        (
            {"batch": BatchSpec(1, 3, 3)},
            (0, 1),
            "node 2 did not join within 2 s: {how}; not started on 2 nodes: global batch 9 does not divide by 2 ranks",
        ),
        ({}, (0,), "nodes 1, 2 did not join within 2 s: {how}"),
    ],
)
def test_a_start_on_fewer_that_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, object], nodes: tuple[int, ...], why: str
) -> None:
    with cluster(tmp_path, DONE, nodes=3, **{**ELASTIC, **changes}) as one:
        one.start(*nodes)
        assert one.wait(*nodes) == [2] * len(nodes)
        how = f"start the same command there with its --node-rank; all nodes must see {one.run.root}"
        assert reason_of(one) == why.format(how=how)
        assert not one.state().attempts


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"batch": None}, "the global batch is not known"),
        ({"knobs": Knobs()}, "the script's batch flag is not known"),
        (
            {"entry_args": ("--lr_scaling=linear",)},
            "--lr_scaling makes the learning rate depend on the ranks",
        ),
    ],
)
def test_what_is_not_known_to_stay_the_same_training_is_no_batch_for_fewer(
    changes: dict[str, Any], why: str
) -> None:
    job = JobSpec("train", EntryKind.TRAINER, "trainer", nnodes="2:3", batch=BatchSpec(2, 2, 3), knobs=KNOBS)
    assert batch_on(NextJob(job), 2) == BatchSpec(2, 3, 2)
    with pytest.raises(JobError, match=why):
        batch_on(NextJob(replace(job, **changes)), 2)


def test_a_node_that_comes_later_joins_at_the_next_restart(tmp_path: Path) -> None:
    with cluster(tmp_path, WAITS, nodes=3, **ELASTIC) as one:
        one.start(0, 1)
        assert wait_until(lambda: bool(one.rank_pids(0) and one.rank_pids(1)), 60)
        one.start(2)
        assert wait_until(lambda: 2 in one.state().nodes, 60)
        assert not one.state(2).attempts
        os.kill(one.rank_pids(1)[0], signal.SIGKILL)
        one.wait_for_ranks(attempt=2)
        first, second = one.state().attempts
        assert (first.batch, second.batch) == (BatchSpec(2, 3, 2), BatchSpec(2, 2, 3))
        one.keepers[0]._control._signals.put(signal.SIGTERM)
        assert one.wait(0, 1, 2) == [5, 5, 5]


def test_who_takes_part_is_known_to_the_keeper_that_comes_after(tmp_path: Path) -> None:
    """Its own order is read from the folder: the newest that starts an attempt, not what was ordered since."""
    node = RunPaths(tmp_path / "run").node()
    make_private(node.root)
    launch = nd.Launch(nodes=(0, 2))
    orders = Orders(node, "first")
    assert orders.take_part(1) is None
    orders.give(Order(seq=0, leader="", want=Want.RUN, attempt=1, launch=launch))
    orders.give(Order(seq=0, leader="", want=Want.END, attempt=1))
    assert orders.take_part(1) == Orders(node, "second").take_part(1) == (0, 2)
    assert orders.take_part(2) is None
