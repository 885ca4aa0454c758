"""One run on nodes that are network namespaces: each has its own address, host name and firewall. Needs root, ip and nft."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from supervisor.keeper.process.child import read_launcher, read_pid
from supervisor.run import state as st
from supervisor.run.journal import read_state
from supervisor.run.ownership import read_holder
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from tests.conftest import not_none, wait_until
from tests.integration.harness import STOKER, environment
from tests.integration.test_two_nodes import SCRIPT

TOOL = Path(__file__).parents[1] / "tools" / "netns_up.sh"
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = [name for name in ("ip", "nft", "unshare") if shutil.which(name, path=PATH) is None]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.serial,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
DEADLINE_S = 150.0
GROUP_TIMEOUT_S = 7


@dataclass
class Nodes:
    """Namespaces node1, node2 …, and a run that all see."""

    folder: Path
    env: dict[str, str]
    stack: ExitStack
    count: int = 2
    keepers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def run(self) -> RunPaths:
        return RunPaths(self.folder / "run")

    def tool(self, *words: str | int) -> None:
        """One of the tool's verbs."""
        subprocess.run(["bash", str(TOOL), *map(str, words)], env=self.env, check=True, timeout=60)

    def stoker(self, node: int, *words: str) -> subprocess.Popen[bytes]:
        """`stoker WORDS` on a node; they count from 0, the namespaces from 1."""
        log = self.stack.enter_context((self.folder / f"console{node}").open("ab"))
        process = subprocess.Popen(
            ["bash", str(TOOL), "run", str(node + 1), *STOKER, *words],
            cwd=self.folder,
            env=self.env,
            stdout=log,
            stderr=log,
        )
        self.keepers[node] = process
        return process

    def start(self, node: int, *more: str, steps: int = 60, master: str = "node1") -> subprocess.Popen[bytes]:
        """The command of this node."""
        flags = ("--no-ui", "--no-check", "--python", sys.executable, "--run-dir", str(self.run.root))
        nodes = ("--nnodes", str(self.count), "--node-rank", str(node), "--master-addr", master)
        return self.stoker(
            node, "run", *flags, *nodes, "--restart-from-scratch", *more, "train.py", str(steps), "-"
        )

    def console(self, node: int) -> str:
        """What this node's command has printed."""
        return (self.folder / f"console{node}").read_text()

    def state(self, node: int = 0) -> st.RunState:
        journal = self.run.node(node).journal
        return read_state(journal) if journal.exists() else st.RunState()

    def train(self) -> None:
        """Wait until node 0 has seen five steps."""

        def stepping() -> bool:
            progress = self.state().progress
            return progress is not None and (progress.step or 0) >= 5

        assert wait_until(stepping, DEADLINE_S), self.console(0)

    def succeed(self, *more: int) -> None:
        """All nodes end with 0, and the run as succeeded, by node 0 and by these."""
        for node, process in self.keepers.items():
            assert process.wait(DEADLINE_S) == 0, self.console(node)
        for node in (0, *more):
            assert outcome(self, node) == ("succeeded", 0)

    def kill_node(self, node: int) -> None:
        """Keeper, launcher, agent and ranks of a node at once."""
        paths, state = self.run.node(node), self.state(node)
        view, holder = state.attempt, read_holder(paths.lock)
        assert view is not None
        assert holder is not None
        found = [read_launcher(paths.attempt(view.number)), read_pid(paths.attempt(view.number))]
        pids = [holder.pid, *(each.pid for each in found if each is not None)]
        for pid in (*pids, *(rank.pid for rank in view.ranks.values() if rank.pid)):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    own = {
        "NETNS_PREFIX": f"stk{os.getpid() % 10_000}x",
        "NETNS_SUBNET": f"10.77.{os.getpid() % 250}",
        "NETNS_DIR": str(tmp_path / "netns"),
        "PATH": PATH,
        "GLOO_SOCKET_IFNAME": "eth0",
        "GROUP_TIMEOUT_S": str(GROUP_TIMEOUT_S),
    }
    with ExitStack() as stack:
        made = Nodes(tmp_path, environment(own), stack)
        made.tool("up", 2)
        try:
            yield made
        finally:
            for process in made.keepers.values():
                if process.poll() is None:
                    process.kill()
                process.wait(30)
            made.tool("down")


def outcome(nodes: Nodes, node: int = 0) -> tuple[str, int]:
    condition = nodes.state(node).condition
    assert isinstance(condition, st.Finished), condition
    return condition.outcome.value, condition.exit_code


def assert_never_met(nodes: Nodes, codes: list[int]) -> None:
    """The verdict is the rendezvous', and all nodes ended with the run's exit code."""
    verdict = not_none(nodes.state().attempts[0].verdict)
    assert verdict.failure is FailureClass.RENDEZVOUS, verdict.title
    assert codes == [outcome(nodes)[1]] * len(nodes.keepers)


def judged_and_healed(nodes: Nodes) -> st.AttemptState:
    """The first attempt once a link that was cut has its last verdict, one of communication; the link is whole again."""

    def judged() -> bool:
        view = nodes.state().attempt
        return view is not None and view.verdict is not None and not view.verdict_provisional

    assert wait_until(judged, GROUP_TIMEOUT_S + 30.0)
    nodes.tool("heal")
    first = nodes.state().attempts[0]
    assert not_none(first.verdict).failure in {FailureClass.NCCL_TIMEOUT, FailureClass.NCCL_ERROR}
    return first


@pytest.mark.fault(
    "nodes",
    "the link between two nodes is cut in the middle of a run",
    "one verdict with a node within the group's timeout and 30 s; once the link is back, all nodes restart",
)
def test_a_cut_link_has_one_verdict_and_heals(nodes: Nodes) -> None:
    nodes.start(1)
    nodes.start(0)
    nodes.train()
    nodes.tool("cut", 1, 2)
    first = judged_and_healed(nodes)
    assert not_none(first.verdict).node in {"0 (node1)", "1 (node2)"}
    nodes.succeed(1)
    assert nodes.state(1).attempts[0].verdict == first.verdict


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "node 0 is gone with keeper, agent and ranks",
    "the others end within --node-timeout; `stoker continue` resumes the run",
)
def test_a_leader_node_that_is_gone(nodes: Nodes) -> None:
    bound = ("--node-timeout", "25")
    nodes.start(1, *bound)
    nodes.start(0, *bound)
    nodes.train()
    nodes.kill_node(0)
    assert nodes.keepers[1].wait(25 + GROUP_TIMEOUT_S + 30) == 6
    assert outcome(nodes, 1) == ("lost", 6)
    nodes.keepers[0].wait(10)
    go_on = nodes.stoker(0, "continue", "--yes", "--no-ui", str(nodes.run.root))
    assert wait_until(lambda: isinstance(nodes.state().condition, st.Backoff), 60), nodes.console(0)
    again = nodes.start(1, *bound)
    assert go_on.wait(DEADLINE_S) == 0, nodes.console(0)
    assert again.wait(30) == 0
    assert [view.number for view in nodes.state().attempts] == [1, 2]
    assert [view.number for view in nodes.state(1).attempts] == [1, 2]


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "a node is cut off before the ranks have met",
    "the rendezvous fails within its own timeout, with a verdict",
)
def test_a_node_that_cannot_reach_the_master(nodes: Nodes) -> None:
    nodes.tool("cut", 1, 2)
    more = ("--rdzv-conf=timeout=15", "--max-retries", "0")
    nodes.start(1, *more)
    nodes.start(0, *more)
    codes = [nodes.keepers[node].wait(DEADLINE_S) for node in (0, 1)]
    assert_never_met(nodes, codes)
    assert codes[0] in {1, 4}


DROPPED = "no answer from node1:{port} ({address}) within 4 s: what is sent there is dropped"
REFUSED = "node1 is there and refuses node1:{port} ({address}): nothing listens there yet"
PORT = 29_871


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "a firewall drops what a node sends to node 0, or refuses it",
    "one line on that node says which, before the ranks have met; then a rendezvous verdict",
)
def test_a_refused_and_a_dropped_port_are_told_apart(nodes: Nodes) -> None:
    nodes.count = 3
    nodes.tool("up", 3)
    nodes.tool("cut", 1, 2)
    nodes.tool("reject", 1, 3)
    more = ("--master-port", str(PORT), "--rdzv-conf=timeout=30", "--max-retries", "0")
    for node in (2, 1, 0):
        nodes.start(node, *more)
    codes = [nodes.keepers[node].wait(DEADLINE_S) for node in range(3)]
    address = f"{nodes.env['NETNS_SUBNET']}.1"
    for node, what in ((1, DROPPED), (2, REFUSED)):
        line = f"waiting for the rendezvous: {what.format(port=PORT, address=address)}; "
        assert nodes.console(node).count(line) == 1, nodes.console(node)
    assert "waiting for the rendezvous" not in nodes.console(0)
    assert_never_met(nodes, codes)


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "--master-addr is another node or an unused address",
    "each node reports what answers there before the ranks have met; then a rendezvous verdict",
)
@pytest.mark.parametrize("host", ["node2", "250"])
def test_a_wrong_master_is_reported(nodes: Nodes, host: str) -> None:
    master = host if host.startswith("node") else f"{nodes.env['NETNS_SUBNET']}.{host}"
    more = ("--master-port", str(PORT), "--rdzv-conf=timeout=30", "--max-retries", "0")
    nodes.start(1, *more, master=master)
    nodes.start(0, *more, master=master)
    codes = [nodes.keepers[node].wait(DEADLINE_S) for node in (0, 1)]
    refused = f"{master} is there and refuses {master}:{PORT}"
    reason = refused if host.startswith("node") else f"{master}:{PORT} cannot be reached: No route to host"
    for node in (0, 1):
        assert nodes.console(node).count(f"waiting for the rendezvous: {reason}") == 1, nodes.console(node)
    assert_never_met(nodes, codes)


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "`stoker check --deep` where a firewall drops what a node sends to node 0, or refuses it",
    "a line on that node says which",
)
def test_a_deep_check_tells_a_refused_from_a_dropped_port(nodes: Nodes) -> None:
    nodes.tool("up", 3)
    nodes.tool("cut", 1, 2)
    nodes.tool("reject", 1, 3)
    more = ("--nnodes", "3", "--nproc-per-node", "1", "--master-addr", "node1", "--master-port", str(PORT))
    for node in range(3):
        words = ("check", "--deep", "--node-rank", str(node), *more, "--python", sys.executable)
        nodes.stoker(node, *words, "train.py", "1")
    for process in nodes.keepers.values():
        process.wait(DEADLINE_S)
    address = f"{nodes.env['NETNS_SUBNET']}.1"
    for node, what in ((1, DROPPED), (2, REFUSED)):
        said, reason = nodes.console(node), what.format(port=PORT, address=address)
        assert f"meeting: {reason}" in said, said
        assert f"collective: the ranks of 3 nodes did not meet at node1:{PORT} within " in said, said
        assert said.count(reason) == 2, "once before the ranks met, once as they did not"
    assert "run this check on all nodes at once" in nodes.console(0)


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "the link between two of three nodes is slow",
    "`stoker check --deep` on each shows the two nodes and their bandwidth",
)
def test_a_slow_pair_of_nodes_is_named(nodes: Nodes) -> None:
    nodes.tool("up", 3)
    nodes.tool("slow", 2, 3, 2000)
    more = ("--nnodes", "3", "--nproc-per-node", "1", "--master-addr", "node1", "--python", sys.executable)
    for node in range(3):
        nodes.stoker(node, "check", "--deep", "--node-rank", str(node), *more, "train.py", "1")
    for node, process in nodes.keepers.items():
        assert process.wait(DEADLINE_S) == 0, nodes.console(node)
        assert "3 ranks on 3 nodes met over gloo" in nodes.console(node)
        assert "! bandwidth: nodes 1–2 (node2, node3): " in nodes.console(node)


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "one of four nodes is cut off in the middle of a run",
    "one verdict with that node within the group's timeout and 30 s; once the link is back, all nodes restart",
)
def test_a_node_of_four_that_is_cut_off_is_named(nodes: Nodes) -> None:
    nodes.count = 4
    nodes.tool("up", 4)
    for node in (3, 2, 1, 0):
        nodes.start(node)
    nodes.train()
    nodes.tool("blackhole", 3)
    first = judged_and_healed(nodes)
    assert not_none(first.verdict).node == "2 (node3)", first.verdict
    nodes.succeed(3)
