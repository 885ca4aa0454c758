"""The commands of docs/from-the-guides.md that are of several machines: on loopback, over sshd, under a SLURM on this machine."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.preflight.network import free_port
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from tests.conftest import wait_until
from tests.integration import sshd, test_slurm
from tests.integration.harness import STOKER, environment, last_step, state_of
from tests.integration.test_from_the_guides import SCRIPT, TINY, commands, folder, shortened
from tests.integration.test_slurm import Cluster, cluster

__all__ = ["cluster", "folder"]  # fixtures

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
DEADLINE_S = 150.0
ON_NODES = [row for row in commands(several_nodes=True) if "--nnodes" in row]
OVER_SSH = [row for row in commands(several_nodes=True) if row.startswith("stoker nodes ")]
UNDER_SLURM = [row for row in commands(several_nodes=True) if row.startswith("stoker slurm ")]
NODE = re.compile(r"(--node[-_]rank[= ])(\d)")


def test_every_command_is_run_by_one_of_these() -> None:
    assert sorted(ON_NODES + OVER_SSH + UNDER_SLURM) == sorted(commands(several_nodes=True))
    assert len(ON_NODES) > 5
    assert len(OVER_SSH) > 3
    assert len(UNDER_SLURM) > 6


def of_node(row: str, node: int, run: Path, port: int) -> list[str]:
    """A row's words on one of two nodes of this machine, shortened."""
    row = NODE.sub(rf"\g<1>{node}", row).replace("192.168.1.100", "127.0.0.1")
    row = re.sub(r"(--master[-_]port[= ])\d+", rf"\g<1>{port}", row)
    row = re.sub(r"/shared/runs/\w+", str(run), row).replace("_IFNAME=eth0", "_IFNAME=lo")
    _, verb, *words = shlex.split(row)
    alone = ["--nproc-per-node", "1"] if "--config" in words else []
    more = ["--no-ui", "--no-check"] if verb == "run" else []
    return [verb, "--python", sys.executable, *more, *shortened([*words, *alone])]


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[pytest.mark.guides] if n else []) for n, row in enumerate(ON_NODES)]
)
def test_a_command_of_one_node_runs_with_that_of_the_other(folder: Path, row: str) -> None:
    run, port = folder / "run", free_port()
    logs = [folder / f"console{node}" for node in (0, 1)]
    nodes: list[subprocess.Popen[bytes]] = []
    for node, log in enumerate(logs):
        with log.open("wb") as file:
            words = [*STOKER, *of_node(row, node, run, port)]
            nodes.append(subprocess.Popen(words, cwd=folder, env=environment(), stdout=file, stderr=file))
    try:
        assert [each.wait(DEADLINE_S) for each in nodes] == [0, 0], [log.read_text() for log in logs]
    finally:
        for each in nodes:
            each.kill()
            each.wait(10)
    if row.startswith("stoker check"):
        assert re.search(r"ranks on 2 nodes met over gloo", logs[0].read_text())
        return
    for node in (0, 1):
        (attempt,) = state_of(RunPaths(run), node).attempts
        assert f"--node-rank={node}" in attempt.argv
    (attempt,) = state_of(RunPaths(run)).attempts
    assert attempt.last_step == int(TINY["num_iterations"])


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[sshd.Hosts]:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    with sshd.loopback_hosts(tmp_path / "ssh", "a", "b") as hosts:
        yield hosts


@pytest.mark.cluster
@pytest.mark.skipif(bool(sshd.MISSING), reason=f"not installed: {', '.join(sshd.MISSING)} (make cluster)")
def test_the_commands_over_ssh(hosts: sshd.Hosts, tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")

    def on_loopback(verb: str) -> tuple[int, str]:
        (row,) = (row for row in OVER_SSH if row.startswith(f"stoker nodes {verb}"))
        row = row.replace("192.168.1.100:4", "a:1").replace("192.168.1.101:4", "b:1")
        row = re.sub(r"/shared/runs/\w+", str(run.root), row)
        words = shlex.split(row)[3:]
        if verb == "up":
            words = [*words[:-1], "--no-check", "--python", sys.executable, *shortened([words[-1]])]
            words = [word.replace("num_iterations=4", "num_iterations=4000") for word in words]
        done = hosts.nodes(verb, *words, cwd=tmp_path)
        return done.code, done.out + done.err

    code, said = on_loopback("up")
    assert code == 0, said

    assert wait_until(lambda: last_step(run) >= 2, DEADLINE_S), on_loopback("logs")
    code, said = on_loopback("status")
    assert (code, said.count("alive")) == (0, 2), said
    code, said = on_loopback("logs")
    assert code == 0
    assert "node 0 rank 0: " in said
    code, said = on_loopback("stop")
    assert code == 0, said
    assert [line.split()[2] for line in said.splitlines()[-2:]] == ["stopped", "stopped"]
    assert isinstance(state_of(run, 1).condition, Finished)


@pytest.mark.cluster
@pytest.mark.skipif(
    bool(test_slurm.MISSING), reason=f"not installed: {', '.join(test_slurm.MISSING)} (make cluster)"
)
def test_the_commands_under_slurm(cluster: Cluster, folder: Path) -> None:
    """In the page's order; on nodes without GPUs, in the partition that there is, for minutes."""
    assert folder == cluster.cwd
    seen: list[str] = []
    for row in UNDER_SLURM:
        _, _, action, *words = shlex.split(row)
        text = shlex.join(words).replace("gpu-a100", "low").replace("48:00:00", "5").replace(" --gpus 8", "")
        words = [word.replace("4711", seen[-1] if seen else "") for word in shlex.split(text)]
        match action:
            case "script":
                code, said = cluster.stoker("script", *words)
                assert (code, "#SBATCH --nodes=2" in said, "train.py" in said) == (0, True, True), said
            case "submit":
                job = [*words, "--nproc-per-node", "1"]
                job += ["--master-addr", "127.0.0.1"] if "--nodes" in words else []
                code, said = cluster.stoker("submit", "--mem", "3000", *shortened(job))
                assert code == 0, said
                seen.append(re.match(r"job (\d+):", said)[1])  # type: ignore[index]  # it does, or this fails
            case "watch":
                code, said = cluster.stoker("watch")
                assert code == 0, said
                for one in seen:
                    cluster.wait(one, "COMPLETED")
            case "logs":
                code, said = cluster.stoker("logs", *words)
                assert (code, "succeeded" in said) == (0, True), said
            case _:
                seen.append(cluster.submit("sleeper.py"))
                cluster.wait(seen[-1], "RUNNING")
                code, said = cluster.stoker("cancel", "--yes", seen[-1])
                assert code == 0, said
                cluster.wait(seen[-1], "CANCELLED")
