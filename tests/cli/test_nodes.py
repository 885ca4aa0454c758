"""``stoker nodes`` and its refusals, over a real sshd on loopback where one is needed; nothing is trained."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from supervisor.cluster.ssh.messages import Do, Request
from supervisor.run.ownership import KeeperLock, read_holder
from supervisor.run.paths import RunPaths
from supervisor.sources.processes import identify
from tests.conftest import wait_until
from tests.integration.harness import environment
from tests.integration.sshd import MISSING, Hosts, loopback_hosts

needs_sshd = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (make cluster)")
JOB = ("--no-check", "--python", sys.executable, "train.py")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    (tmp_path / "train.py").write_text("print(1)\n", encoding="utf-8")
    with loopback_hosts(tmp_path / "ssh", "a", "b") as hosts:
        yield hosts


def test_a_keeper_of_another_start_is_not_ended(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run")
    run.node().root.mkdir(parents=True)
    me = identify(os.getpid())
    assert me is not None
    lock = KeeperLock(run.node().lock, start_time=me.start_time)
    try:
        request = Request(do=Do.END, folder=str(tmp_path), run_dir=str(run.root), token="0123456789abcdef")
        words = [sys.executable, "-m", "supervisor", "nodes", "here"]
        done = subprocess.run(
            words,
            input=msgspec.json.encode(request),
            env=environment(),
            capture_output=True,
            check=True,
            timeout=60,
        )
    finally:
        lock.release()
    assert "is of another start: it stays" in done.stdout.decode()


@needs_sshd
def test_check_compares_and_starts_nothing(hosts: Hosts, tmp_path: Path) -> None:
    done = hosts.nodes("check", "--hosts", "a:1,b:1", *JOB, cwd=tmp_path)
    assert done.code == 0, done
    assert [line.split()[0] for line in done.out.splitlines()[-3:]] == ["HOST", "a", "b"]
    assert not (tmp_path / "runs").exists()


@needs_sshd
def test_what_differs_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    python = tmp_path / "other"
    python.write_text(
        f'#!/bin/sh\n{sys.executable} "$@" | sed s/torch.:../torch\\":\\ \\"9/\n', encoding="utf-8"
    )
    python.chmod(0o755)
    (tmp_path / "hosts").write_text(
        f"a PATH={os.environ['PATH']} STOKER_PYTHON={sys.executable}\nb STOKER_PYTHON={python}\n"
    )
    done = hosts.nodes("up", "--hosts-file", "hosts", "--no-check", "train.py", cwd=tmp_path)
    assert done.code == 3, done
    assert "stoker nodes: differs: torch: a " in done.err
    assert not (tmp_path / "runs").exists()


@needs_sshd
def test_a_run_that_is_not_there_is_said(hosts: Hosts, tmp_path: Path) -> None:
    words = ("--hosts", "a,b", "--run-dir", "run")
    stopped = hosts.nodes("stop", *words, cwd=tmp_path)
    assert stopped.code == 2
    assert "no such run there" in stopped.err
    assert "no such run" in hosts.nodes("status", *words, cwd=tmp_path).out


@needs_sshd
def test_each_way_that_leads_nowhere_is_one_line(hosts: Hosts, tmp_path: Path) -> None:
    def said(*words: str) -> str:
        done = hosts.nodes("check", "--hosts", *words, cwd=tmp_path)
        assert done.code == 2, done
        assert "Traceback" not in done.err
        assert len(done.err.splitlines()) <= 2, "a line a host"
        return done.err

    hosts.cut("b")
    assert "b: unreachable: connection refused" in said("a,b", *JOB)
    hosts.key("host-b")
    assert hosts.listen("b")
    assert "b: its host key has changed" in said("a,b", *JOB)
    known = tmp_path / "ssh" / "known_hosts"
    known.write_text(known.read_text().splitlines()[0] + "\n")
    assert "b: its host key is not known" in said("a,b", *JOB)
    assert "a: no stoker there" in said("a,b", "--stoker", "/no/stoker", *JOB)
    assert "nobody@a: permission denied" in said("nobody@a,b", *JOB)
    assert "no such host" in said("a,no-such-host.invalid", *JOB)
    assert "/no/folder: No such file" in said("a,b", "--dir", "/no/folder", *JOB)


@needs_sshd
@pytest.mark.e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may mount")
def test_a_folder_that_is_not_shared_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    hosts.cut("b")
    inner = 'mount -t tmpfs none "$0" 2>/dev/null || exit 9; exec "$@"'
    assert hosts.listen("b", ("unshare", "--mount", "sh", "-c", inner, str(tmp_path / "runs")))
    done = hosts.nodes("up", "--hosts", "a,b", *JOB, cwd=tmp_path)
    assert done.code == 3, done
    assert f"b: it does not see {tmp_path}/runs/" in done.err
    assert "what was started is ended" in done.err
    (run,) = (RunPaths(each) for each in (tmp_path / "runs").iterdir() if each.name != "latest")
    holder = read_holder(run.node().lock)
    assert holder is not None
    assert wait_until(lambda: identify(holder.pid) is None, 60)
