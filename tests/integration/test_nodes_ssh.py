"""``stoker nodes`` over a real sshd on loopback, a port for each host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.run import state as st
from supervisor.run.ownership import has_keeper
from supervisor.run.paths import RunPaths
from tests.conftest import not_none, wait_until
from tests.integration.harness import background, stoker
from tests.integration.sshd import MISSING, WORDS, Hosts, loopback_hosts
from tests.integration.test_two_nodes import DEADLINE_S, SCRIPT, state_of, steps

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make cluster)"),
]
FLAGS = ("--hosts", "a:1,b:1", "--run-dir", "run")
JOB = ("--no-check", "--python", sys.executable, "--restart-from-scratch", "train.py")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    with loopback_hosts(tmp_path / "ssh", "a", "b") as hosts:
        yield hosts


@pytest.mark.fault(
    "nodes",
    "ssh to all hosts of a run is cut while logs are read",
    "training continues; status, logs and stop reach it again",
)
def test_a_run_over_two_hosts_is_started_watched_cut_off_and_stopped(hosts: Hosts, tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    up = hosts.nodes("up", *FLAGS, *JOB, "2000", "-", cwd=tmp_path)
    assert up.code == 0, up.err
    assert "b: node 1: started" in up.out
    assert wait_until(lambda: steps(run, 2), DEADLINE_S), hosts.nodes("logs", cwd=tmp_path).out

    again = hosts.nodes("up", *FLAGS, *JOB, "2000", "-", cwd=tmp_path)
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
    assert [line.split()[-1] for line in there.out.splitlines()[2:]] == ["lives", "lives"]
    stopped = hosts.nodes("stop", cwd=tmp_path)
    assert stopped.code == 0, stopped
    assert [type(state_of(run, node).condition) for node in (0, 1)] == [st.Finished, st.Finished]
    assert [line.split()[2] for line in stopped.out.splitlines()[-2:]] == ["stopped", "stopped"]
    logs = hosts.nodes("logs", "-n", "1", cwd=tmp_path)
    assert sum("rank 0: step " in line for line in logs.out.splitlines()) == 1
    assert {line[:6] for line in logs.out.splitlines()} == {"node 0", "node 1"}


LOSES_IT = """\
#!/bin/sh
# ssh that goes nowhere: what it is told to start is started here. To b the connection is lost once stoker has started something.
for word; do target=$last; last=$word; done
case " $*" in *" -G "*) echo "hostname 127.0.0.1"; exit 0;; esac
request=$(cat)
printf '%s\\n' "$request" | sh -c "$last"
code=$?
case "$request" in *'"do":"verb"'*) [ "$target" = b ] && { echo "Connection reset by peer" >&2; exit 255; };; esac
exit $code
"""


@pytest.mark.thorough
def test_a_start_that_loses_its_connection_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(LOSES_IT, encoding="utf-8")
    ssh.chmod(0o755)
    env = {"PATH": f"{ssh.parent}:{os.environ['PATH']}"}
    up = stoker("nodes", "up", "--stoker", WORDS, *FLAGS, *JOB, "2000", "-", cwd=tmp_path, env=env)
    assert up.code == 2
    assert "b: the connection was lost: Connection reset by peer" in up.err
    assert "what was started is ended" in up.err
    run = RunPaths(tmp_path / "run")
    assert wait_until(lambda: isinstance(state_of(run).condition, st.Finished), DEADLINE_S)
    assert wait_until(lambda: not has_keeper(run) and not has_keeper(run, 1), DEADLINE_S)
