"""configs/cluster/hand-off under what it is for, as far as one machine shows it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.preflight.network import free_port
from supervisor.run.paths import RunPaths
from tests.cluster.test_kubernetes import MANIFEST, job, pod
from tests.conftest import not_none, wait_until
from tests.integration.harness import ROOT, background, environment
from tests.integration.test_two_nodes import DEADLINE_S, TRAINING, state_of

TOOLS = ROOT / ".venv-hand-off" / "bin"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
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
    words = (
        "run",
        "--no-ui",
        "--no-check",
        "--nproc-per-node",
        "1",
        "--master-addr",
        "127.0.0.1",
        "--config",
        "job.toml",
    )
    run = RunPaths(tmp_path / "runs" / "kubernetes-train-0b1c2d3e")

    def env(index: int, restarts: int) -> dict[str, str]:
        return {**pod(index, restarts), "STOKER_RUNS_DIR": str(tmp_path / "runs")}

    with background(*words, cwd=tmp_path, env=env(0, 0)) as first, background(*words, cwd=tmp_path, env=env(1, 0)) as second:  # fmt: skip
        assert wait_until(
            lambda: run.node().journal.exists() and state_of(run).checkpoint is not None, DEADLINE_S
        ), first.stdout and first.stdout.read()
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
    given = (
        "--run_dir",
        str(tmp_path / "run"),
        "--nodes",
        "2",
        "--script",
        "train.py",
        "--port",
        str(free_port()),
    )
    done = subprocess.run(
        [TOOLS / "torchx", "run", "--wait", "--log", "-s", "local_cwd", f"{COMPONENT}:train", *given, "--stoker", f"{sys.executable} -m supervisor", "--flags", flags, "--", "--name", "a b"],
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
