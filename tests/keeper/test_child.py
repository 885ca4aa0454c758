"""Launching: the exit status survives, nothing is left behind by a launch that failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.keeper.process.child import (
    LAUNCHER,
    Child,
    SpawnError,
    adopt,
    kill_all,
    read_exit,
    read_pid,
    spawn,
)
from supervisor.run.paths import AttemptPaths
from supervisor.sources.processes import ProcessId, become_subreaper, is_alive, send_signal
from tests.conftest import TOKEN, not_none, processes_with, wait_until
from tests.keeper.fakes import SLEEP, plan_of


def start(tmp_path: Path, *argv: str) -> Child:
    return spawn(plan_of(argv, tmp_path), AttemptPaths(tmp_path / "1"), os.environ)


def ended(child: Child) -> int | None:
    assert wait_until(lambda: child.poll() is not None, 10)
    status = not_none(child.poll())
    return status.exit_code


def test_output_goes_to_the_agent_log_and_the_environment_is_the_plans(tmp_path: Path) -> None:
    from supervisor.job.launch.env import EnvChange

    plan = plan_of(
        (sys.executable, "-c", "import os; print(os.environ['A'], 'B' in os.environ)"),
        tmp_path,
        (EnvChange("A", "here", "why"), EnvChange("B", None, "why")),
    )
    child = spawn(plan, AttemptPaths(tmp_path / "1"), {**os.environ, "B": "1"})
    assert ended(child) == 0
    assert child.paths.agent_log.read_text(encoding="utf-8") == "here False\n"
    assert child.paths.agent_log.stat().st_mode & 0o777 == 0o600


@pytest.mark.fault(
    "processes", "the launcher alone is killed", "the command continues and its exit status is known"
)
def test_a_killed_launcher_costs_neither_the_command_nor_its_status(tmp_path: Path) -> None:
    """The keeper is a subreaper: what its launcher started becomes its own child."""
    assert become_subreaper()
    child = start(tmp_path, sys.executable, "-c", SLEEP)
    os.kill(child.launcher.pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(child.launcher), 5)
    assert child.poll() is None
    assert is_alive(child.pid)
    send_signal(child.pid)
    assert ended(child) == -signal.SIGKILL


@pytest.mark.fault(
    "journal and disk", "a slow disk delays the launcher", "the keeper waits for the exit status"
)
def test_a_launcher_that_a_busy_disk_keeps_waiting_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start(tmp_path, sys.executable, "-c", SLEEP)
    launcher = json.loads((tmp_path / "1" / "pid").read_bytes())["launcher_pid"]
    os.kill(launcher, signal.SIGSTOP)  # as in an fsync that takes its time
    send_signal(child.pid)
    assert wait_until(lambda: not is_alive(child.pid), 5)
    later = [time.monotonic()]
    monkeypatch.setattr("supervisor.keeper.process.child.time.monotonic", lambda: later[0])
    assert child.poll() is None
    later[0] += 30.0
    assert child.poll() is None
    monkeypatch.undo()
    os.kill(launcher, signal.SIGCONT)
    assert ended(child) == -signal.SIGKILL


def test_signals_to_everybody_do_not_reach_the_launcher(tmp_path: Path) -> None:
    child = start(tmp_path, sys.executable, "-c", SLEEP)
    group = os.getpgid(child.pid.pid)
    assert group != os.getpgid(0)
    os.killpg(group, signal.SIGTERM)
    assert ended(child) == -signal.SIGTERM


@pytest.mark.fault(
    "processes",
    "a signal to all processes (scancel, Ctrl-C) during a launch",
    "the launcher survives and the command starts; the stop is carried out, and no launch counts as failed",
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_at_the_launchers_first_moment_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    real = subprocess.Popen

    def hit(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        made = real(*args, **kwargs)
        made.send_signal(number)  # its interpreter has only begun to load
        return made

    monkeypatch.setattr(subprocess, "Popen", hit)
    code = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)"
    child = start(tmp_path, sys.executable, "-c", code)
    assert ended(child) == 0
    assert child.paths.agent_log.read_text(encoding="utf-8") == "[]\n", "the command itself blocks none"
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "nor does this thread"


def test_a_launcher_that_is_killed_before_its_command_ran_is_no_mistake_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen

    def killed(_argv: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        # One that is killed from outside may have started the command by then.
        return real([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], **kwargs)

    monkeypatch.setattr(subprocess, "Popen", killed)
    with pytest.raises(SpawnError, match="the launcher ended with -9") as raised:
        start(tmp_path, sys.executable, "-c", SLEEP)
    assert raised.value.killed


@pytest.mark.parametrize(("job", "ignored"), [({"SLURM_JOB_ID": "7"}, True), ({}, False)])
def test_under_slurm_the_command_ignores_usr1(tmp_path: Path, job: dict[str, str], ignored: bool) -> None:
    """srun hands it to every process of its step."""
    code = "import signal; print(signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN)"
    child = spawn(
        plan_of((sys.executable, "-c", code), tmp_path), AttemptPaths(tmp_path / "1"), {**os.environ, **job}
    )
    assert ended(child) == 0
    assert child.paths.agent_log.read_text(encoding="utf-8") == f"{ignored}\n"


@pytest.mark.fault(
    "processes",
    "a command that cannot be executed, a deleted working folder",
    "one line",
)
@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("no-such-program",), "no-such-program: No such file or directory"),
        (("/",), "/: Permission denied"),
        (("true", "a\0b"), "cannot start true: embedded null byte"),
    ],
)
def test_a_program_that_cannot_be_started_is_one_line(
    tmp_path: Path, argv: tuple[str, ...], why: str
) -> None:
    with pytest.raises(SpawnError) as raised:
        start(tmp_path, *argv)
    failed = raised.value
    assert (str(failed), failed.disk_full, failed.killed) == (why, False, False)
    with pytest.raises(SpawnError) as raised:
        spawn(plan_of(("true",), tmp_path / "gone"), AttemptPaths(tmp_path / "2"), os.environ)
    assert str(raised.value) == f"cannot start true: {tmp_path / 'gone'}: No such file or directory"
    if len(argv) == 1:  # The keeper that starts it may die before it learns that: the next one does.
        left = not_none(adopt(AttemptPaths(tmp_path / "1"), str(tmp_path)))
        status = not_none(left.poll())
        assert (status.exit_code, status.error) == (127, why)
        assert not_none(status.t) == pytest.approx(time.time(), abs=60)


@pytest.mark.fault(
    "journal and disk", "a new process's pid cannot be recorded", "the process does not continue unrecorded"
)
def test_a_command_whose_pid_cannot_be_written_down_does_not_run_on(tmp_path: Path) -> None:
    exit_path = tmp_path / "exit"
    subprocess.run(
        [sys.executable, "-I", "-S", str(LAUNCHER), str(exit_path), str(tmp_path / "gone" / "pid"),
         str(tmp_path / "log"), "--", sys.executable, "-c", SLEEP],
        check=True, timeout=20,
    )  # fmt: skip
    assert not processes_with(os.environ[TOKEN])
    assert json.loads(exit_path.read_bytes())["exit_code"] == 127


def test_the_space_of_the_exit_status_is_taken_before_the_command_runs(tmp_path: Path) -> None:
    child = start(tmp_path, sys.executable, "-c", SLEEP)
    assert (tmp_path / "1" / "exit.part").stat().st_size >= 100
    send_signal(child.pid)
    assert ended(child) == -signal.SIGKILL
    assert not (tmp_path / "1" / "exit.part").exists()


@pytest.mark.fault(
    "secrets and access", "a umask of 000 at the launch", "every file is 0600, every folder 0700"
)
def test_every_file_of_a_launch_is_the_users_alone(tmp_path: Path) -> None:
    """Whatever the person's umask is: logs and environments hold what others must not read."""

    def files() -> list[Path]:
        return [path for path in (tmp_path / "1").iterdir() if path.is_file()]

    before = os.umask(0)
    try:
        child = start(tmp_path, sys.executable, "-c", SLEEP)
        assert wait_until((tmp_path / "1" / "pid").exists, 10)
        modes = {path.name: path.stat().st_mode & 0o777 for path in files()}
        send_signal(child.pid)
        assert ended(child) == -signal.SIGKILL
        modes |= {path.name: path.stat().st_mode & 0o777 for path in files()}
    finally:
        os.umask(before)
    assert {"exit", "exit.part", "pid", "agent.log"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


def test_nothing_was_started_where_there_is_no_pid_and_half_files_are_none(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    assert adopt(paths, str(tmp_path)) is None
    assert adopt(paths, str(tmp_path), wait_s=0.05) is None
    (tmp_path / "pid").write_text('{"pid": 12', encoding="utf-8")
    (tmp_path / "exit").write_text("[1]", encoding="utf-8")
    assert read_pid(paths) is None
    assert read_exit(paths) is None
    (tmp_path / "pid").write_text('{"pid": "12", "start_ticks": 3}', encoding="utf-8")
    assert read_pid(paths) is None


@pytest.mark.fault(
    "processes", "a reboot, after which another process has the pid", "it does not count as the run's"
)
def test_a_pid_of_another_boot_is_nobodys(tmp_path: Path) -> None:
    child = start(tmp_path, sys.executable, "-c", SLEEP)
    known = not_none(adopt(child.paths, str(tmp_path)))
    assert (known.pid, known.launcher) == (child.pid, child.launcher)
    record = json.loads((child.paths.root / "pid").read_bytes())
    (child.paths.root / "pid").write_text(json.dumps({**record, "boot_id": "another"}), encoding="utf-8")
    found = not_none(adopt(child.paths, str(tmp_path)))
    assert found.pid != child.pid
    assert kill_all([found.pid]) == []
    assert is_alive(child.pid)
    send_signal(child.pid)
    assert wait_until(lambda: child.poll() is not None, 10)


@pytest.mark.fault("processes", "another process has a recorded pid", "no signal is sent to it")
def test_a_stranger_under_a_known_pid_is_never_signalled(tmp_path: Path) -> None:
    child = start(tmp_path, sys.executable, "-c", SLEEP)
    stranger = ProcessId(child.pid.pid, child.pid.start_time - 1.0)
    assert kill_all([stranger, ProcessId(0, -1.0)], signal.SIGKILL) == []
    assert is_alive(child.pid)
    send_signal(child.pid)
    assert ended(child) == -signal.SIGKILL
