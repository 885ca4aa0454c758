"""`stoker service`: the unit, checked by systemd-analyze; what it starts, run as systemd would start it. systemd itself is not run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.service import unit_of
from supervisor.run import events as ev
from supervisor.run.access.lock import keeper_is_alive
from supervisor.run.events import Outcome
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.sources.processes import ProcessId, is_alive
from tests.conftest import wait_until
from tests.integration.harness import environment, facts, only_run, stoker, wait_for_step
from tests.keeper.fakes import job_of, own_run_in
from tests.keeper.runs import INTENDED, STARTED, T

pytestmark = pytest.mark.timeout(240)

WAITS = """
import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print(f"step {n} loss {5 / n:.3f}", flush=True)
    time.sleep(0.05)
"""


def words_of(unit: str) -> tuple[list[str], dict[str, str]]:
    """ExecStart as a list, and the environment; the escapes that systemd takes back are taken back."""

    def plain(word: str) -> str:
        return word.replace("$$", "$").replace("%%", "%")

    start = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    assert start is not None
    given = [shlex.split(line)[0] for line in re.findall(r"^Environment=(.*)$", unit, re.MULTILINE)]
    pairs = (text.partition("=") for text in given)
    return [plain(word) for word in shlex.split(start[1])], {name: plain(value) for name, _, value in pairs}


def verify(path: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze (Debian: systemd) is not installed")
    verify = ["systemd-analyze", "--user", "verify", str(path)]
    # It wants a runtime folder, as a user's session has one.
    env = {**os.environ, "XDG_RUNTIME_DIR": str(path.parent)}
    return subprocess.run(verify, capture_output=True, text=True, check=False, timeout=60, env=env)


@pytest.mark.fault("processes", "the service's unit file", "systemd-analyze accepts it")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a b/100%/$HOME")
    runs = [RunPaths(tmp_path / "runs" / "20261120-1412-brave-otter"), RunPaths(tmp_path / 'odd "name" 5%')]
    unit = unit_of(runs, os.environ)
    command, given = words_of(unit)
    assert command == [
        sys.executable,
        "-P",
        "-m",
        "supervisor",
        "service",
        "--adopt",
        "--interval=15",
        *(str(run.root) for run in runs),
    ]
    assert given["PYTHONPATH"] == "/a b/100%/$HOME"
    path = tmp_path / "stoker-test.service"
    path.write_text(unit)
    done = verify(path)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    path.write_text(unit.replace("KillMode=process", "KillMode=nonsense"))
    assert "kill mode" in verify(path).stderr, "it does look"


@pytest.mark.fault(
    "processes",
    "the keeper is killed with SIGKILL twice while `stoker service` watches",
    "adopted each time; training unharmed, exit recorded",
)
def test_what_the_unit_starts_adopts_a_run_whose_keeper_was_killed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    done = stoker("run", "--detach", "--", sys.executable, "-c", WAITS, str(gate), cwd=tmp_path)
    assert done.code == 0, done.err
    run = only_run(tmp_path)
    state = wait_for_step(run, 3)
    written = stoker("service", "--write", run.run_id, cwd=tmp_path)
    assert written.code == 0, written.err
    path = Path(written.out.splitlines()[0])
    assert path == Path(os.environ["XDG_CONFIG_HOME"], "systemd/user", f"stoker-{run.run_id}.service")
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"systemctl --user enable --now {path.name}" in written.out
    command, given = words_of(path.read_text())
    # As systemd starts it: nothing of this shell's environment, another folder.
    bare = {
        name: os.environ[name]
        for name in ("HOME", "XDG_STATE_HOME", "STOKER_TEST_TOKEN")
        if name in os.environ
    }
    unit = subprocess.Popen(
        [*command, "--interval", "0.5"], cwd="/", env={**bare, **given}, stdin=subprocess.DEVNULL
    )
    try:
        attempt = state.attempt
        assert attempt is not None
        assert attempt.pid
        assert attempt.start_time
        job = ProcessId(attempt.pid, attempt.start_time)
        for _ in range(2):
            pid = read_state(run.node().journal).keeper_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda pid=pid: read_state(run.node().journal).keeper_pid != pid, 60)  # type: ignore[misc]
            assert wait_until(lambda: keeper_is_alive(run.node().lock), 30)
            assert is_alive(job), "training continues"
        gate.touch()
        assert unit.wait(timeout=90) == 0, "its work is done"
    finally:
        unit.kill()
        unit.wait()
    final = read_state(run.node().journal)
    assert isinstance(final.condition, Finished)
    assert (final.condition.outcome, len(final.attempts), final.attempts[0].exit_code) == (
        Outcome.SUCCEEDED,
        1,
        0,
    )
    steps = [event.step for event in facts(run) if isinstance(event, ev.Progress) and event.step is not None]
    assert steps == sorted(set(steps))


@pytest.mark.fault(
    "processes",
    "a reboot, with `stoker service` started at login",
    "the run is named and left for `stoker continue`",
)
def test_a_run_of_another_boot_is_left_for_continue(tmp_path: Path) -> None:
    booted = ev.KeeperStarted(t=T, pid=9, start_time=1.0, version="0", boot_id="another-boot")
    alive = ev.AttemptStarted(t=T, attempt=1, pid=os.getpid(), start_time=1.0)
    import socket

    here = ev.RunStarted(t=T, run_id="run-1", name="job", mode="launched", host=socket.gethostname())
    assert STARTED.run_id == here.run_id
    run = own_run_in(tmp_path, job_of(tmp_path, "true"), here, booted, INTENDED, alive)
    command, given = words_of(unit_of([run], environment(), interval_s=1.0))
    done = subprocess.run(
        command, cwd="/", env={**os.environ, **given}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0
    assert "this machine was booted since" in done.stderr
    assert f"`stoker continue {run.run_id}`" in done.stderr
    assert not keeper_is_alive(run.node().lock), "nothing was started"
    assert len(read_state(run.node().journal).attempts) == 1


def test_an_unknown_run_is_one_line(tmp_path: Path) -> None:
    done = stoker("service", "no-such-run", cwd=tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
