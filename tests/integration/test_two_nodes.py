"""One run on two nodes, as two processes on one machine, with real torchrun; started over ssh, and handed off by Kubernetes and TorchX."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.keeper.follower import SILENT
from supervisor.keeper.process.child import read_launcher, read_pid
from supervisor.preflight.network import free_port
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.node_files import NodePhase, read_report
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from tests.cluster.test_kubernetes import MANIFEST, job, pod
from tests.conftest import not_none, wait_until
from tests.integration.harness import ROOT, background, environment, facts, last_step, state_of
from tests.integration.sshd import MISSING, Hosts, loopback_hosts
from tests.tiers import first

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DEADLINE_S = 120.0
# It ends after the steps that its first argument says (and prints no total), or once the file "finish" is there.
SCRIPT = """\
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", "1800"))))
rank, steps, fails = dist.get_rank(), int(sys.argv[1]), sys.argv[2]
for step in range(1, steps + 1):
    finish = torch.tensor([float(os.path.exists("finish"))])
    dist.all_reduce(finish)
    if finish:
        break
    time.sleep(0.1)
    if rank == 0:
        print(f"step {step} loss {1 / step:.4f}", flush=True)
    if fails == str(rank) and step == 5 and os.environ["STOKER_ATTEMPT"] == "1":
        os.kill(os.getpid(), 9)
dist.barrier()
dist.destroy_process_group()
"""
FLAGS = ("--no-ui", "--no-check", "--python", sys.executable, "--run-dir", "run")


def node_of(node: int, *meet: str) -> tuple[str, ...]:
    """The flags of one of two nodes with a rank each."""
    where = meet or ("--master-addr", "127.0.0.1")
    return ("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1", *where)


def words(node: int, *meet: str, steps: int = 20, fails: str = "-") -> tuple[str, ...]:
    """The command of a node that trains `SCRIPT`."""
    return ("run", *FLAGS, "--restart-from-scratch", *node_of(node, *meet), "train.py", str(steps), fails)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    return RunPaths(tmp_path / "run")


def steps(run: RunPaths, least: int) -> bool:
    """Whether node 0 has seen so many steps."""
    return last_step(run) >= least


def test_a_rank_killed_on_node_1_restarts_both(run: RunPaths) -> None:
    meet = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    cwd = run.root.parent
    with (
        background(*words(1, *meet, fails="1"), cwd=cwd) as follower,
        background(*words(0, *meet, fails="1"), cwd=cwd) as leader,
    ):
        codes = leader.wait(DEADLINE_S), follower.wait(DEADLINE_S)
        assert codes == (0, 0), leader.stdout and leader.stdout.read()
    first, second = state_of(run).attempts
    verdict = not_none(first.verdict)
    assert (verdict.failure, verdict.rank) == (FailureClass.WORKER_CRASH, 1)
    on_node_0 = any(rank.rank == 1 for rank in state_of(run).attempts[0].ranks.values())
    assert (verdict.node or "").startswith("0 (" if on_node_0 else "1 (")
    assert second.job_exit_code == 0
    assert state_of(run, 1).attempts[0].verdict == first.verdict


def kill(keeper: subprocess.Popen[str]) -> None:
    keeper.send_signal(signal.SIGKILL)
    keeper.wait(10)


def pids_of(run: RunPaths) -> dict[int | None, int]:
    """The process of each rank, on both nodes."""
    ranks = [rank for node in (0, 1) for rank in state_of(run, node).attempts[0].ranks.values()]
    return {rank.rank: rank.pid for rank in ranks if rank.pid}


def keepers_of(run: RunPaths, node: int) -> int:
    """How many keepers a node has had."""
    return sum(isinstance(fact, ev.KeeperStarted) for fact in facts(run, node))


@pytest.mark.fault(
    "nodes",
    "a follower's keeper is killed with -9 and started again",
    "it joins again and takes over the live processes",
)
@pytest.mark.fault(
    "nodes",
    "the leader's keeper is killed with -9",
    "training continues on all nodes; attach --adopt continues leading",
)
def test_a_keeper_that_is_killed_on_either_node_comes_back_to_the_same_attempt(run: RunPaths) -> None:
    cwd, endless = run.root.parent, 100_000
    with background(*words(0, steps=endless), cwd=cwd) as leader:
        with background(*words(1, steps=endless), cwd=cwd) as follower:
            assert wait_until(lambda: steps(run, 2), DEADLINE_S)
            kill(follower)
        with background(*words(1, steps=endless), cwd=cwd) as again:
            assert wait_until(lambda: keepers_of(run, 1) == 2, DEADLINE_S)
            kill(leader)
            pids = pids_of(run)
            assert len(pids) == 2
            assert all(os.path.exists(f"/proc/{pid}") for pid in pids.values()), "training continues"
            with background("attach", "--adopt", str(run.root), cwd=cwd):
                assert wait_until(lambda: keepers_of(run, 0) == 2, DEADLINE_S)
                (cwd / "finish").touch()
                assert again.wait(DEADLINE_S) == 0
    assert wait_until(lambda: isinstance(state_of(run).condition, st.Finished), DEADLINE_S)
    for node in (0, 1):
        assert [view.number for view in state_of(run, node).attempts] == [1]
    assert state_of(run, 1).attempts[0].exit_code == 0


@pytest.mark.fault(
    "nodes",
    "the leader's keeper is killed with -9, and a rank dies while it is gone",
    "the follower starts nothing new; `stoker continue` on node 0 makes the verdict and restarts all",
)
def test_followers_start_nothing_while_the_leaders_keeper_is_gone(run: RunPaths) -> None:
    cwd = run.root.parent
    with background(*words(1, steps=400), cwd=cwd) as follower:
        with background(*words(0, steps=400), cwd=cwd) as leader:
            assert wait_until(lambda: steps(run, 2), DEADLINE_S)
            kill(leader)
        os.kill(pids_of(run)[1], signal.SIGKILL)

        def noticed() -> bool:
            """The part has ended there, and the leader's silence has been seen: what is started without it would be by now."""
            report = read_report(run.node(1))
            silent = any(advisory.code.startswith(SILENT) for advisory in state_of(run, 1).advisories)
            return silent and report is not None and report.phase is NodePhase.ENDED

        assert wait_until(noticed, DEADLINE_S)
        assert follower.poll() is None
        for node in (0, 1):
            assert [view.number for view in state_of(run, node).attempts] == [1]
        with background("continue", "--yes", "--no-ui", str(run.root), cwd=cwd):
            assert wait_until(lambda: len(state_of(run, 1).attempts) == 2, DEADLINE_S)
            follower.send_signal(signal.SIGTERM)
            assert follower.wait(DEADLINE_S) == 5
    first, second = state_of(run).attempts
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.rank) == (FailureClass.WORKER_CRASH, 1)
    assert state_of(run, 1).attempts[0].verdict == first.verdict
    assert second.started_t is not None


def _first_stamp(run: RunPaths, node: int) -> float:
    """The time that the first line of a node's rank bears."""
    log = run.node(node).attempt(1).rank_folders()[0] / "stderr.log"
    stamp = next(line for line in log.read_text(encoding="utf-8").splitlines() if "step 1/5" in line)
    return datetime.strptime(stamp[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()  # noqa: DTZ007 - both are local


# Every rank stamps its lines, and the peers of a rank that raises fail by its end, each with a line of its own.
STAMPED = """\
import logging, sys, time
import torch, torch.distributed as dist
logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
dist.init_process_group("gloo")
rank = dist.get_rank()
try:
    for step in range(1, 6):
        dist.all_reduce(torch.ones(1))
        logging.info("step %d/5 loss %.4f", step, 1 / step)
        time.sleep(0.1)
    if rank == 1:
        raise KeyError("missing")
    dist.all_reduce(torch.ones(1))
except Exception:
    logging.exception("rank %d: training failed", rank)
    raise
"""


# Every Python process of a node reads this clock: its keeper, torchrun, its ranks.
SKEW = """\
import time
now, now_ns = time.time, time.time_ns
time.time = lambda: now() + {ahead_s}
time.time_ns = lambda: now_ns() + int({ahead_s} * 1e9)
"""


@pytest.mark.fault(
    "nodes",
    "a node's clock is 1 s ahead, or behind",
    "the same verdict, with the node and rank that failed first",
)
@pytest.mark.parametrize("ahead_s", first(1, [1.0, -1.0]))
def test_clocks_that_differ_change_no_verdict(run: RunPaths, ahead_s: float) -> None:
    cwd = run.root.parent
    (cwd / "train.py").write_text(STAMPED, encoding="utf-8")
    (cwd / "skew").mkdir()
    (cwd / "skew" / "sitecustomize.py").write_text(SKEW.format(ahead_s=ahead_s), encoding="utf-8")
    skewed = {"PYTHONPATH": f"{cwd / 'skew'}{os.pathsep}{ROOT}"}
    with background(*words(1), cwd=cwd) as follower, background(*words(0), cwd=cwd, env=skewed) as leader:
        assert (leader.wait(DEADLINE_S), follower.wait(DEADLINE_S)) == (1, 1)
    views = [state_of(run, node).attempts[0] for node in (0, 1)]
    apart_s = _first_stamp(run, 0) - _first_stamp(run, 1)
    assert abs(apart_s - ahead_s) < 0.5, "ranks step together: by that much do their clocks differ"
    verdict = not_none(views[0].verdict)
    assert (verdict.failure, verdict.rank) == (FailureClass.CODE_ERROR, 1)
    assert (verdict.node or "").startswith("1 (")
    assert not_none(verdict.cause).text == "KeyError: 'missing'"
    assert len(state_of(run).attempts) == 1


TRAINING = """\
num_iterations = 120
save_every = 10
depth = 1
model_dim = 32
head_dim = 16
total_batch_size = 256
max_seq_len = 32
device_batch_size = 4
"""


@pytest.mark.fault(
    "nodes",
    "SIGUSR1 on one node, and `stoker continue` later",
    "a checkpoint and exit code 75 on all nodes; the next attempt resumes from that step",
)
def test_a_warning_ends_in_a_checkpoint_and_the_run_is_continued(run: RunPaths) -> None:
    cwd = run.root.parent
    (cwd / "job.toml").write_text(TRAINING, encoding="utf-8")

    def command(node: int) -> tuple[str, ...]:
        return ("run", *FLAGS, *node_of(node), "--config", "job.toml")

    with background(*command(0), cwd=cwd) as leader, background(*command(1), cwd=cwd) as follower:
        assert wait_until(lambda: state_of(run).checkpoint is not None, DEADLINE_S)
        follower.send_signal(signal.SIGUSR1)
        assert (leader.wait(DEADLINE_S), follower.wait(DEADLINE_S)) == (75, 75)
    saved = not_none(state_of(run).checkpoint)
    with background("continue", "--yes", "--no-ui", "run", cwd=cwd) as leader:
        assert wait_until(lambda: isinstance(state_of(run).condition, st.Backoff), DEADLINE_S)
        with background(*command(1), cwd=cwd) as follower:
            assert (leader.wait(DEADLINE_S), follower.wait(DEADLINE_S)) == (0, 0)
    first, second = state_of(run).attempts
    assert not_none(first.stop).why is ev.StopWhy.REQUEUE
    assert second.resumed_step == saved.step
    assert second.last_step == 120


BATCHED = """\
import argparse, os, time
import torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
args = parser.parse_args()
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
seen = args.batch_size * args.gradient_accumulation_steps * ranks
for step in range(1, 61 if ranks == 2 else 10_000):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
    if rank == 0:
        print(f"step {step} loss {1 / step:.4f} samples {seen}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "one of `--nnodes 2:3` nodes is lost with keeper, agent and rank",
    "the run is restarted on two, with the global batch of three",
)
def test_a_run_of_three_nodes_continues_with_two(run: RunPaths) -> None:
    cwd = run.root.parent
    (cwd / "train.py").write_text(BATCHED, encoding="utf-8")
    nodes = ("--nnodes", "2:3", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--node-timeout", "5")
    script = ("train.py", "--batch_size", "2", "--gradient_accumulation_steps", "2")

    def command(node: int) -> tuple[str, ...]:
        return (
            "run",
            *FLAGS,
            "--restart-from-scratch",
            *nodes,
            "--node-rank",
            str(node),
            "--batch-scope",
            "per_rank",
            *script,
        )

    with (
        background(*command(2), cwd=cwd) as lost,
        background(*command(1), cwd=cwd) as follower,
        background(*command(0), cwd=cwd) as leader,
    ):
        assert wait_until(lambda: steps(run, 2), DEADLINE_S)
        lost.send_signal(signal.SIGKILL)
        lost.wait(10)
        paths = run.node(2).attempt(1)
        found = [read_launcher(paths), read_pid(paths)]
        pids = [each.pid for each in found if each is not None]
        for pid in (*pids, *(rank.pid for rank in state_of(run, 2).attempts[0].ranks.values() if rank.pid)):
            os.kill(pid, signal.SIGKILL)
        assert (leader.wait(DEADLINE_S), follower.wait(DEADLINE_S)) == (0, 0), (
            leader.stdout and leader.stdout.read()
        )
    first, second = state_of(run).attempts
    assert first.batch == BatchSpec(2, 2, 3)
    assert first.verdict is not None
    assert (first.verdict.rank, (first.verdict.node or "")[:3]) == (2, "2 (")
    assert second.batch == BatchSpec(2, 3, 2)
    logs = run.node().attempt(2).rank_folders()[0] / "stdout.log"
    assert "samples 12" in logs.read_text(encoding="utf-8").splitlines()[0]
    assert [view.number for view in state_of(run, 2).attempts] == [1]


ON_HOSTS = ("--hosts", "a:1,b:1", "--run-dir", "run")
ON_EACH = ("--no-check", "--python", sys.executable, "--restart-from-scratch", "train.py")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    with loopback_hosts(tmp_path / "ssh", "a", "b") as hosts:
        yield hosts


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make cluster)")
@pytest.mark.fault(
    "nodes",
    "ssh to all hosts of a run is cut while logs are read",
    "training continues; status, logs and stop reach it again",
)
def test_a_run_over_two_hosts_is_started_watched_cut_off_and_stopped(hosts: Hosts, tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    up = hosts.nodes("up", *ON_HOSTS, *ON_EACH, "2000", "-", cwd=tmp_path)
    assert up.code == 0, up.err
    assert "b: node 1: started" in up.out
    assert wait_until(lambda: steps(run, 2), DEADLINE_S), hosts.nodes("logs", cwd=tmp_path).out

    again = hosts.nodes("up", *ON_HOSTS, *ON_EACH, "2000", "-", cwd=tmp_path)
    assert again.code == 2
    assert "a keeper is node 0 of it already" in again.err

    with background("nodes", "logs", "-f", cwd=tmp_path) as reader:
        assert reader.stdout is not None
        assert any("node 0 rank 0: step " in line for line in reader.stdout)
        for name in ("a", "b"):
            hosts.cut(name)
        assert "the connection was lost" in reader.stdout.read()
        assert reader.wait(30) == 2
    gone = hosts.nodes("status", cwd=tmp_path)
    assert gone.code == 2
    assert "unreachable: connection refused" in gone.out
    seen = not_none(state_of(run).progress)
    assert wait_until(lambda: steps(run, (seen.step or 0) + 5), DEADLINE_S), "training continues"

    for name in ("a", "b"):
        assert hosts.listen(name)
    there = hosts.nodes("status", cwd=tmp_path)
    assert there.code == 0, there
    assert [line.split()[-1] for line in there.out.splitlines()[2:]] == ["alive", "alive"]
    stopped = hosts.nodes("stop", cwd=tmp_path)
    assert stopped.code == 0, stopped
    assert [type(state_of(run, node).condition) for node in (0, 1)] == [st.Finished, st.Finished]
    assert [line.split()[2] for line in stopped.out.splitlines()[-2:]] == ["stopped", "stopped"]
    logs = hosts.nodes("logs", "-n", "1", cwd=tmp_path)
    assert sum("rank 0: step " in line for line in logs.out.splitlines()) == 1
    assert {line[:6] for line in logs.out.splitlines()} == {"node 0", "node 1"}


TOOLS = ROOT / ".venv-hand-off" / "bin"
needs_tools = pytest.mark.skipif(
    not (TOOLS / "torchx").exists(), reason=f"not installed: {TOOLS} (make cluster)"
)
COMPONENT = MANIFEST.with_name("torchx_stoker.py")


@pytest.mark.fault(
    "nodes",
    "Kubernetes ends the pods of a JobSet (SIGTERM) and starts them again",
    "a checkpoint and exit code 75 in all pods; started again, they continue with the run",
)
def test_pods_that_are_moved_go_on_with_their_run(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(TRAINING, encoding="utf-8")
    on_node = ("--nproc-per-node", "1", "--master-addr", "127.0.0.1")
    words = ("run", "--no-ui", "--no-check", *on_node, "--config", "job.toml")
    run = RunPaths(tmp_path / "runs" / "kubernetes-train-0b1c2d3e")

    def env(index: int, restarts: int) -> dict[str, str]:
        return {**pod(index, restarts), "STOKER_RUNS_DIR": str(tmp_path / "runs")}

    with background(*words, cwd=tmp_path, env=env(0, 0)) as first, background(*words, cwd=tmp_path, env=env(1, 0)) as second:  # fmt: skip
        assert wait_until(lambda: state_of(run).checkpoint is not None, DEADLINE_S)
        for each in (second, first):
            each.send_signal(signal.SIGTERM)
        assert (first.wait(DEADLINE_S), second.wait(DEADLINE_S)) == (75, 75)
    saved = not_none(state_of(run).checkpoint)
    with background(*words, cwd=tmp_path, env=env(0, 1)) as first, background(*words, cwd=tmp_path, env=env(1, 1)) as second:  # fmt: skip
        assert (first.wait(DEADLINE_S), second.wait(DEADLINE_S)) == (0, 0), (
            first.stdout and first.stdout.read()
        )
    assert state_of(run).attempts[-1].resumed_step == saved.step
    assert state_of(run).attempts[-1].last_step == 120


@needs_tools
def test_kubernetes_takes_the_job_of_the_jobset(tmp_path: Path) -> None:
    def taken(spec: object) -> bool:
        text = json.dumps(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}
        )
        (tmp_path / "job.json").write_text(text, encoding="utf-8")
        words = [str(TOOLS / "kubernetes-validate"), "-k", "1.31", "--strict", str(tmp_path / "job.json")]
        return subprocess.run(words, capture_output=True, check=False, timeout=60).returncode == 0

    assert taken(job())
    assert not taken({**job(), "podFailurePolices": {}}), "a key that is misspelt is found"


@needs_tools
def test_torchx_starts_one_run_over_two_replicas(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:], flush=True)\n", encoding="utf-8")
    flags = f"--no-check --python {sys.executable}"
    where = ("--run_dir", str(tmp_path / "run"), "--nodes", "2", "--port", str(free_port()))
    done = subprocess.run(
        [TOOLS / "torchx", "run", "--wait", "--log", "-s", "local_cwd", f"{COMPONENT}:train", *where, "--script", "train.py", "--stoker", f"{sys.executable} -m supervisor", "--flags", flags, "--", "--name", "a b"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = RunPaths(tmp_path / "run")
    assert [state_of(run, node).attempts[0].exit_code for node in (0, 1)] == [0, 0]
    assert "['--name', 'a b']" in "".join(
        path.read_text() for path in run.root.glob("nodes/1/attempts/1/torchrun/*/*/0/stdout.log")
    )
