"""A real SLURM of three nodes on this machine: submitted, watched, requeued at the same step, cancelled, refused, a node lost."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.run.events import KeeperStarted
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass, Reason
from supervisor.run.state import Finished, RunState
from tests.conftest import not_none, wait_until
from tests.integration.harness import STOKER, end_of, environment, facts, run_headless, state_of, verdict_of

TOOL = Path(__file__).parents[1] / "tools" / "slurm_up.sh"
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = [
    name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name, path=PATH) is None
]
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.serial,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make cluster)"),
]
DEADLINE_S = 150.0
TRAINER = (
    "--config", "job.toml", "--depth=2", "--model_dim=32", "--head_dim=16", "--max_seq_len=32", "--device_batch_size=4",
    "--total_batch_size=256", "--num_iterations=600", "--save_every=50", "--log_interval=50", "--eval_every=0",
    "--corpus_mib=1", "--device=cpu", "--seed=3",
)  # fmt: skip
JOB = 'nproc_per_node = 1\n[env]\nOMP_NUM_THREADS = "1"\n'
# A script that knows nothing of signals but SIGTERM's default.
DEAF = """\
import signal, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
for step in range(1, 2000):
    print(f"step {step} loss {1 / step:.4f}", flush=True)
    time.sleep(0.1)
"""
SLEEPER = "import time\nprint('step 1 loss 1.0', flush=True)\ntime.sleep(600)\n"


@dataclass(frozen=True)
class Cluster:
    """SLURM's controller and its nodes; `cwd`: where jobs are submitted."""

    env: dict[str, str]
    cwd: Path

    def run(self, *words: str) -> tuple[int, str]:
        """A command where jobs are submitted; its code and what it says."""
        done = subprocess.run(words, env=self.env, cwd=self.cwd, capture_output=True, text=True, check=False, timeout=300)  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def call(self, *words: str) -> str:
        return self.run(*words)[1]

    def stoker(self, *words: str) -> tuple[int, str]:
        return self.run(*STOKER, "slurm", *words)

    def submit(self, *words: str) -> str:
        code, said = self.stoker("submit", "--time", "5", "--mem", "3000", *words)
        assert code == 0, said
        match = re.match(r"job (\d+):", said)
        assert match is not None, said
        return match[1]

    def batch(self, *options: str, script: str) -> str:
        """Hand in a batch script of one's own; the job's number. Its output is in the file `out`."""
        text = f"#!/bin/sh\n{script}\n"
        (self.cwd / "own.sh").write_text(text.replace("STOKER", " ".join(STOKER)), encoding="utf-8")
        said = self.call("sbatch", "--parsable", "--mem=3000", "--output=out", *options, "own.sh").strip()
        assert said.isdigit(), said
        return said

    @property
    def out(self) -> str:
        """What batch script and tasks have printed."""
        return (self.cwd / "out").read_text(encoding="utf-8")

    def state(self, job: str) -> str:
        match = re.search(r"JobState=(\w+)", self.call("scontrol", "show", "job", job))
        return match[1] if match else ""

    def wait(self, job: str, *states: str) -> None:
        assert wait_until(lambda: self.state(job) in states, DEADLINE_S, 0.5), f"{job}: {self.state(job)}"

    def saved(self, job: str, step: int) -> None:
        """Wait until the job's run has a checkpoint of this step or a later one."""
        reached = lambda: (point := self.run_of(job).checkpoint) is not None and point.step >= step
        assert wait_until(reached, DEADLINE_S)

    def start_soon(self, job: str) -> None:
        """A requeued job waits for 2 minutes; started again in the same second, slurmd takes it for killed."""
        self.call("scontrol", "update", f"JobId={job}", "StartTime=now+5")

    def run_at(self, job: str) -> RunPaths:
        return RunPaths(self.cwd / "runs" / f"slurm-{job}")

    def run_of(self, job: str) -> RunState:
        return state_of(self.run_at(job))


def tool(*words: str, env: dict[str, str]) -> None:
    subprocess.run([str(TOOL), *words], env=env, check=words != ("stop",), timeout=120, capture_output=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    env = {
        **environment(),
        "PATH": PATH,
        "SLURM_LOOP_DIR": str(tmp_path / "slurm"),
        "SLURM_LOOP_PORT": str(18_900 + os.getpid() % 1000),
        "STOKER_RUNS_DIR": str(tmp_path / "runs"),
    }
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    (tmp_path / "deaf.py").write_text(DEAF, encoding="utf-8")
    (tmp_path / "sleeper.py").write_text(SLEEPER, encoding="utf-8")
    tool("start", env=env)
    try:
        yield Cluster({**env, "SLURM_CONF": str(tmp_path / "slurm/etc/slurm.conf")}, tmp_path)
    finally:
        tool("stop", env=env)


def test_two_nodes_are_requeued_before_the_limit_and_end_with_the_same_loss(cluster: Cluster) -> None:
    job = cluster.submit("--nodes", "2", "--master-addr", "127.0.0.1", *TRAINER)
    cluster.saved(job, 100)
    cluster.call("scancel", "--batch", "--signal=USR1", job)  # what SLURM does before the limit
    cluster.wait(job, "PENDING")
    cluster.start_soon(job)
    cluster.wait(job, "COMPLETED")
    state = cluster.run_of(job)
    first, second = state.attempts
    assert (end_of(state).exit_code, second.last_step) == (0, 600)
    assert first.last_step is not None
    assert first.last_step < 600
    assert second.first_step == first.last_step + 1, "no step is trained twice"
    alone = cluster.cwd / "alone"
    alone.mkdir()
    (alone / "job.toml").write_text(JOB, encoding="utf-8")
    _, _, whole = run_headless(*TRAINER[:2], "--nproc-per-node=2", *TRAINER[2:], cwd=alone)
    assert second.last_loss == pytest.approx(whole.attempts[0].last_loss, abs=1e-4)
    assert cluster.stoker("watch", job)[0] == 0
    code, said = cluster.stoker("logs", "-n", "400", job)
    assert code == 0
    assert f"node 1: stoker run: node 1 of 2 in step 0 of SLURM job {job}" in said


@pytest.mark.cluster
def test_a_cancelled_job_that_saved_its_checkpoint_stays_cancelled(cluster: Cluster) -> None:
    job = cluster.submit("--nodes", "2", "--master-addr", "127.0.0.1", *TRAINER)
    cluster.saved(job, 50)
    assert cluster.stoker("cancel", "--yes", job)[0] == 0
    assert wait_until(lambda: isinstance(cluster.run_of(job).condition, Finished), DEADLINE_S)
    # Its batch script has ended once squeue has forgotten "completing"; a requeued one would be pending by then.
    assert wait_until(lambda: "COMPLETING" not in cluster.call("squeue", "-h", "-o", "%T"), DEADLINE_S, 0.5)
    assert cluster.state(job) == "CANCELLED"
    assert "Restarts=0" in cluster.call("scontrol", "show", "job", job)


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "a node of a SLURM job is gone with slurmd and its steps",
    "`slurm watch --exclude-failed` shows it and keeps the job off it; the job resumes its run on the other nodes",
)
def test_a_lost_node_is_excluded_and_the_job_resumes_without_it(cluster: Cluster) -> None:
    # 600 steps are over in 10 s on an idle machine, before the watch has started and the node is killed.
    longer = [word.replace("iterations=600", "iterations=1800") for word in TRAINER]
    job = cluster.submit("--nodes", "2", "--master-addr", "127.0.0.1", *longer)
    cluster.saved(job, 50)
    ran_on = re.findall(r" NodeList=(\S+)", cluster.call("scontrol", "show", "job", job))
    assert ran_on == ["n[1-2]"]
    with (cluster.cwd / "watch").open("w+", encoding="utf-8") as log:
        watch = subprocess.Popen(
            [*STOKER, "slurm", "watch", "--exclude-failed", job],
            env=cluster.env,
            cwd=cluster.cwd,
            stdout=log,
            stderr=log,
        )
        try:

            def said() -> str:
                return (cluster.cwd / "watch").read_text(encoding="utf-8")

            assert wait_until(lambda: "RUNNING" in said(), DEADLINE_S), said()
            tool("node-kill", "n2", env=cluster.env)
            assert wait_until(lambda: "n2 is excluded from it" in said(), DEADLINE_S), said()
            assert "NODE_FAIL: n2 is down" in said()
            assert "ExcNodeList=n2" in cluster.call("scontrol", "show", "job", job)
            cluster.start_soon(job)
            cluster.wait(job, "COMPLETED")
            assert watch.wait(DEADLINE_S) == 0, said()
        finally:
            watch.kill()
            watch.wait(10)
    state = cluster.run_of(job)
    first, second = state.attempts
    assert (second.last_step, second.job_exit_code) == (1800, 0)
    assert second.resumed_step is not None
    assert second.resumed_step >= 50
    assert (not_none(first.verdict).node or "").startswith("1 ("), first.verdict


RUN = "STOKER run --no-ui --no-check --nproc-per-node 1 --master-addr 127.0.0.1"


def assert_limited(state: RunState, why: str) -> None:
    """The time limit ended it, and nothing was saved."""
    verdict, end = verdict_of(state), end_of(state)
    assert (verdict.failure, verdict.reason) == (FailureClass.TERMINATED, Reason.TIME_LIMIT)
    assert (end.exit_code, end.reason) == (5, f"{why}: no checkpoint was committed")


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "a SLURM job reaches its time limit, and nothing was saved",
    "the verdict is the time limit, not a stop on request; exit code 5, and it is not started again",
)
def test_a_job_that_reaches_its_limit_ends_for_it(cluster: Cluster) -> None:
    limited = cluster.batch("--nodes=2", "--time=1", script=f"srun {RUN} deaf.py")
    cluster.wait(limited, "TIMEOUT")
    assert wait_until(lambda: isinstance(cluster.run_of(limited).condition, Finished), DEADLINE_S)
    assert_limited(cluster.run_of(limited), "the time limit was reached")
    code, said = cluster.stoker("watch", limited)
    assert (code, "terminated (time_limit): no checkpoint was committed in time" in said) == (1, True), said


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "a SLURM job is warned of its limit, and its script ignores the warning",
    "it is stopped before the limit; the verdict is the time limit, exit code 5, not started again",
)
def test_a_script_that_ignores_the_warning_is_stopped_before_the_limit(cluster: Cluster) -> None:
    job = cluster.submit("--nodes", "2", "--master-addr", "127.0.0.1", "deaf.py")
    assert wait_until(lambda: bool(cluster.run_of(job).attempts), DEADLINE_S, 0.2)
    assert wait_until(lambda: (cluster.run_of(job).attempts[0].last_step or 0) >= 2, DEADLINE_S, 0.2)
    cluster.call("scancel", "--batch", "--signal=USR1", job)  # what SLURM does before the limit
    cluster.wait(job, "FAILED")
    assert_limited(cluster.run_of(job), "the batch system warned of its limit")
    assert "Restarts=0" in cluster.call("scontrol", "show", "job", job)


@pytest.mark.cluster
@pytest.mark.fault(
    "nodes",
    "a rank of a two-node SLURM job runs out of memory",
    "all nodes are restarted with half the micro-batch and the same global batch, within the same job",
)
def test_out_of_memory_is_restarted_within_the_allocation(cluster: Cluster) -> None:
    job = cluster.submit("--nodes", "2", "--master-addr", "127.0.0.1", *TRAINER, "--fault=oom@60:1")
    cluster.wait(job, "COMPLETED")
    assert "Restarts=0" in cluster.call("scontrol", "show", "job", job)
    state = cluster.run_of(job)
    first, second = state.attempts
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.rank) == (FailureClass.HOST_OOM, 1)
    assert (first.verdict.node or "").startswith("1 (")
    assert (first.batch, second.batch) == (
        BatchSpec(4, 1, 2, BatchUnit.TOKENS, 32),
        BatchSpec(2, 2, 2, BatchUnit.TOKENS, 32),
    )
    assert (second.last_step, second.job_exit_code) == (600, 0)
    started = [fact for fact in facts(cluster.run_at(job)) if isinstance(fact, KeeperStarted)]
    assert [fact.slurm_job for fact in started] == [job]
