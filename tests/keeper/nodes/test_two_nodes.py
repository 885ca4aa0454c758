"""Two keepers, one run: one verdict, one decision, one attempt at a time."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import msgspec
import pytest

from supervisor.job.spec import Timing
from supervisor.run import events as ev
from supervisor.run import heartbeat
from supervisor.run import node_files as nd
from supervisor.run import state as st
from supervisor.run.events import NodeSight, Outcome
from supervisor.run.node_files import Order, Orders, Want, read_order, read_report, write_report
from supervisor.run.paths import make_private
from supervisor.run.records import FailureClass
from tests.conftest import not_none, wait_until
from tests.keeper.nodes.cluster import Cluster, cluster
from tests.tiers import first

pytestmark = pytest.mark.timeout(120)

DONE = "print('step 1/1 loss 1.0', flush=True)"
WAITS = "import time\nprint('step 1/9 loss 1.0', flush=True)\ntime.sleep(600)"
# Rank 1 fails at its first attempt; rank 0 then loses its peer, as it would say.
FAILS_ONCE = """\
import os, time
rank, attempt = os.environ["RANK"], os.environ["STOKER_ATTEMPT"]
print("step 1/9 loss 1.0", flush=True)
if attempt == "1" and rank == "1":
    os.kill(os.getpid(), 9)
if attempt == "1":
    time.sleep(600)
print("step 9/9 loss 0.1", flush=True)
"""
RAISES = """\
import os, time
print("step 1/9 loss 1.0", flush=True)
if os.environ["RANK"] == "1":
    labels = {}
    labels["missing"]
time.sleep(600)
"""


def finished(one: Cluster, node: int = 0) -> tuple[Outcome, int]:
    condition = one.state(node).condition
    assert isinstance(condition, st.Finished)
    return condition.outcome, condition.exit_code


def reason_of(one: Cluster, node: int = 0) -> str:
    condition = one.state(node).condition
    assert isinstance(condition, st.Finished)
    return condition.reason


def test_both_nodes_run_one_attempt_and_end_alike(tmp_path: Path) -> None:
    with cluster(tmp_path, DONE) as one:
        one.start(1)
        one.start(0)
        assert one.wait(0, 1) == [0, 0]
        assert finished(one) == finished(one, 1) == (Outcome.SUCCEEDED, 0)
        joined, ended = (fact for fact in one.facts() if isinstance(fact, ev.NodeSeen))
        host = socket.gethostname()
        assert joined == ev.NodeSeen(t=joined.t, node=1, sight=NodeSight.JOINED, host=host)
        assert ended == ev.NodeSeen(
            t=ended.t, node=1, sight=NodeSight.ENDED, host=host, attempt=1, exit_code=0
        )
        ports = {
            next(word for word in view.argv if word.startswith("--master-port="))
            for view in (one.state(0).attempts[0], one.state(1).attempts[0])
        }
        assert len(ports) == 1, "node 0 chose one for both"
        over = not_none(read_order(one.run.node()))
        view, reason = one.state().attempts[0], reason_of(one)
        assert over == Order(
            seq=over.seq, leader=over.leader, want=Want.OVER, attempt=1, verdict=view.verdict, decision=view.decision,
            outcome=Outcome.SUCCEEDED, exit_code=0, reason=reason,
        )  # fmt: skip
        assert reason_of(one, 1) == reason
        report = not_none(read_report(one.run.node(1)))
        assert report == nd.Report(
            node=1, session=report.session, host=host, nnodes=2, phase=nd.NodePhase.LEFT, seq=over.seq, attempt=1, exit_code=0
        )  # fmt: skip
        watches_hangs = [one.keepers[node].context.record.job.hang.enabled for node in (0, 1)]
        assert watches_hangs == [True, False], "node 0 alone counts rank 0's steps"


@pytest.mark.fault(
    "nodes", "a rank of another node dies", "one verdict, with its node; all nodes are restarted together"
)
def test_a_rank_that_dies_on_another_node_restarts_all(tmp_path: Path) -> None:
    with cluster(tmp_path, FAILS_ONCE) as one:
        one.start(0, 1)
        assert one.wait(0, 1) == [0, 0]
        first, second = one.state().attempts
        assert first.verdict is not None
        assert (first.verdict.failure, first.verdict.rank) == (FailureClass.WORKER_CRASH, 1)
        assert first.verdict.node == f"1 ({one.state(1).host})"
        assert first.stop is not None
        assert first.stop.by == "node 1"
        assert [view.number for view in one.state(1).attempts] == [1, 2]
        assert one.state(1).attempts[0].verdict == first.verdict, "the follower has no verdict of its own"
        assert second.job_exit_code == 0


@pytest.mark.parametrize("error", first(1, [TimeoutError(), ConnectionRefusedError()]))
def test_the_cause_is_found_in_another_nodes_log_and_whether_that_node_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    monkeypatch.setattr("supervisor.keeper.follower.connection_error", lambda *_: error)
    with cluster(tmp_path, RAISES) as one:
        one.start(0, 1)
        assert one.wait(0, 1) == [1, 1]
        verdict = not_none(one.state().attempts[0].verdict)
        assert verdict.failure is FailureClass.CODE_ERROR
        assert verdict.cause is not None
        assert verdict.cause.text == "KeyError: 'missing'"
        place = (one.run.node().attempt(1).root / verdict.cause.path).resolve()
        assert place.is_relative_to(one.run.node(1).root)
        told = [(advisory.code, advisory.text) for advisory in one.state(1).advisories]
        text = "node 0 could not be reached at 127.0.0.1 once attempt 1 had failed here"
        is_told = ("cut_off_1", text) in told
        assert is_told is isinstance(error, TimeoutError), "a machine that refuses is reached"
        assert finished(one, 1) == finished(one) == (Outcome.FAILED, 1)


@pytest.mark.fault(
    "nodes", "a follower's keeper gets SIGTERM", "the run is stopped on all nodes, and shows which one asked"
)
def test_a_signal_on_one_node_stops_the_run(tmp_path: Path) -> None:
    with cluster(tmp_path, WAITS) as one:
        one.start(0, 1)
        one.wait_for_ranks()
        one.keepers[1]._control._signals.put(signal.SIGTERM)
        assert one.wait(0, 1) == [5, 5]
        stop = not_none(one.state().attempts[0].stop)
        assert stop.by == "node 1: SIGTERM"


# Ranks that checkpoint together and then leave together, as the bundled trainer's do: rank 0's keeper has had no signal.
LEAVES_TOGETHER = """\
import os, signal, sys, time
bye = os.path.join(os.environ["STOKER_RUN_DIR"], "bye")
def leave(*_):
    open(bye, "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
print("step 1/9 loss 1.0", flush=True)
while not os.path.exists(bye):
    time.sleep(0.02)
sys.exit(75)
"""


@pytest.mark.fault(
    "nodes", "one node alone is warned of the time limit", "all end together, and the run asks to be requeued"
)
def test_a_warning_on_one_node_counts_where_ranks_leave_together(tmp_path: Path) -> None:
    with cluster(tmp_path, LEAVES_TOGETHER) as one:
        one.start(0, 1)
        one.wait_for_ranks()
        one.keepers[1]._control._signals.put(signal.SIGUSR1)
        one.wait(0, 1)
        view = one.state().attempts[0]
        assert view.stop is not None
        assert (view.stop.why, view.stop.by) == (ev.StopWhy.REQUEUE, "node 1: SIGUSR1")
        assert view.decision is not None
        assert view.decision.reason.startswith("the batch system warned of its limit")
        assert finished(one) == finished(one, 1)


def test_nodes_that_never_come_end_the_start_and_one_that_comes_later_does_not_wait_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(tmp_path, DONE, timing=Timing(node_timeout_s=1.0)) as one:
        one.start(0)
        assert one.wait(0) == [2]
        how = f"start the same command there with its --node-rank; all nodes must see {one.run.root}"
        assert reason_of(one) == f"node 1 did not join within 1 s: {how}"
        assert not one.state().attempts
        one.start(1)
        assert one.wait(1) == [2]
        assert finished(one, 1) == (Outcome.REFUSED, 2)
        assert not one.state(1).attempts
        assert "waiting up to 1 s for node 0 to continue it" in caplog.text


@pytest.mark.fault(
    "nodes",
    "node 1 joins an ended run while node 0 continues it",
    "it waits up to 30 s (or --node-timeout) for node 0, and joins",
)
@pytest.mark.parametrize("first", first(1, [1, 0]))
def test_a_run_that_ended_before_anything_was_launched_waits_again_when_it_is_continued(
    tmp_path: Path, first: int
) -> None:
    with cluster(tmp_path, DONE, timing=Timing(node_timeout_s=5.0)) as one:
        one.start(0)
        assert one.wait(0) == [2]
        for node in (first, 1 - first):  # at once: node 1 finds the old end, or the run as it is continued
            one.start(node, continued_by="kim" if node == 0 else "")
        assert one.wait(0, 1) == [0, 0]
        (view,) = one.state().attempts
        assert view.reason == "kim continued it"
        assert finished(one) == finished(one, 1) == (Outcome.SUCCEEDED, 0)


@pytest.mark.fault(
    "nodes",
    "a second keeper leads the same run",
    "each order has one leader; the first keeper stops leading and starts nothing",
)
def test_a_leader_that_is_superseded_leaves(tmp_path: Path) -> None:
    with cluster(tmp_path, WAITS) as one:
        one.start(0, 1)
        one.wait_for_ranks()
        pids = one.rank_pids(0)
        other = Orders(one.run.node(), "another")
        other.give(Order(seq=0, leader="", want=Want.END, attempt=1))
        assert one.wait(0) == [6]
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids), "what it launched is the other one's"
        assert not isinstance(one.state().condition, st.Finished)
        ended = wait_until(
            lambda: (r := read_report(one.run.node(1))) is not None and r.phase is nd.NodePhase.ENDED, 30
        )
        assert ended, "the follower obeys the one that leads"
        other.give(Order(seq=0, leader="", want=Want.OVER, attempt=1, outcome=Outcome.STOPPED, exit_code=5))
        assert one.wait(1) == [5]
        one.start(0)  # what is left of the test is ended by a keeper
        one.keepers[0]._control._signals.put(signal.SIGTERM)
        one.wait(0)


@pytest.mark.fault("nodes", "the leader's whole node is gone", "the others end within --node-timeout")
def test_a_follower_ends_within_its_bound_where_the_leader_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "SILENT_S", 1.0)
    timing = Timing(grace_s=1.0, death_grace_s=0.5, node_timeout_s=2.0)
    with cluster(tmp_path, WAITS, timing=timing) as one:
        make_private(one.run.node().root)
        launch = nd.Launch(nodes=(0, 1), reason="first launch", master_port=9)
        Orders(one.run.node(), "dead").give(Order(seq=0, leader="", want=Want.RUN, attempt=1, launch=launch))
        one.start(1)
        assert one.wait(1) == [6]
        silent = "node 0 has shown no sign of life for 2 s: `stoker continue` on it takes the run up"
        assert reason_of(one, 1) == silent
        (advice,) = one.state(1).advisories
        text = "the keeper of node 0 shows no sign of life for 1 s: what runs here continues, nothing new is started"
        assert (advice.code, advice.text, advice.attempt) == ("leader_silent_1", text, 1)
        stop = not_none(one.state(1).attempts[0].stop)
        assert stop.by == "node 0 is gone"


FAILS_AT_FIRST = """\
import os
print("step 1/9 loss 1.0", flush=True)
{}[os.environ["STOKER_ATTEMPT"] == "1"] if os.environ["STOKER_ATTEMPT"] == "1" else print("step 9/9 loss 0.1")
"""


def test_a_signal_on_a_node_ends_a_run_that_is_held_and_does_not_count_once_it_is_continued(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, FAILS_AT_FIRST) as one:
        interactive = msgspec.structs.replace(one.records[0].settings, interactive=True)
        one.records = [msgspec.structs.replace(record, settings=interactive) for record in one.records]
        one.start(0, 1)
        assert wait_until(lambda: isinstance(one.state().condition, st.HeldOpen), 60)
        one.keepers[1]._control._signals.put(signal.SIGTERM)
        assert one.wait(0, 1) == [5, 5]
        assert reason_of(one) == reason_of(one, 1) == "stopped by node 1: SIGTERM between attempts"
        one.start(1)
        assert wait_until(lambda: isinstance(one.state(1).condition, st.HeldOpen), 60)
        held = [fact for fact in one.facts(1) if isinstance(fact, ev.Held)]
        assert (held[-1].attempt, held[-1].reason) == (1, "waits for node 0")
        one.start(0, continued_by="kim")
        assert one.wait(0, 1) == [0, 0]
        assert [view.number for view in one.state(1).attempts] == [1, 2]
        assert one.state(1).attempts[0].decision == one.state().attempts[0].decision
        assert one.state(1).attempts[0].decided_by == "node 0"


def test_a_node_that_is_not_ready_again_is_waited_for_no_longer_than_allowed(tmp_path: Path) -> None:
    """Node 1's keeper shows life, but never says that it has read what was ordered."""
    timing = Timing(grace_s=1.0, death_grace_s=0.5, node_timeout_s=4.0)
    with cluster(tmp_path, FAILS_ONCE.replace('rank == "1"', 'rank == "0"'), timing=timing) as one:
        other = one.run.node(1)
        make_private(other.root)
        beats = heartbeat.Heartbeat(other.heartbeat, "busy")
        report = nd.Report(node=1, session="busy", host="b", nnodes=2, phase=nd.NodePhase.READY)
        write_report(other, report)
        one.start(0)

        def is_over() -> bool:
            beats.beat(time.monotonic())
            if one.state().attempts:
                ended = {"phase": nd.NodePhase.ENDED, "attempt": 1, "exit_code": 0}
                write_report(other, msgspec.structs.replace(report, **ended))
            return not one.threads[0].is_alive()

        assert wait_until(is_over, 60)
        assert one.wait(0) == [1]
        why = "node 1 is not ready 4 s after the others: start the same command there again"
        assert (reason_of(one), len(one.state().attempts)) == (why, 1)
