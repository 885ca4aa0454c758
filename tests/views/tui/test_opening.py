"""From the command to the app, on a real terminal: what is printed before it, keys typed early, and a terminal given back whole."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pexpect
import pytest

from supervisor.run.journal import read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.state import HeldOpen
from tests.conftest import wait_until
from tests.integration.harness import STOKER, environment, only_run, run_headless, stoker

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"


def attaching(log: Path, *args: str, **env: str) -> AbstractContextManager[pexpect.spawn]:
    return on_a_terminal("attach", str(log), *args, env=env)


@contextmanager
def on_a_terminal(
    *args: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = STOKER[1:],
) -> Iterator[pexpect.spawn]:
    process = pexpect.spawn(
        sys.executable,
        [*program, *args],
        env=environment({"TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})}),
        cwd=str(cwd) if cwd is not None else None,
        dimensions=(40, 120),
        timeout=60,
    )
    try:
        yield process
    finally:
        if process.flag_eof:
            # It is on its way out: a forced close would send it signals of its own, and one of them would be its end.
            wait_until(lambda: not process.isalive(), 30)
        process.close(force=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text("step 1 loss 2.5\nthe last line\n", encoding="utf-8")
    return path


def test_the_terminal_is_entered_once_and_given_back_once(log: Path) -> None:
    with attaching(log) as process:
        process.expect("the last line")
        assert process.before.count(ENTERED) == 1
        process.expect("leave")
        process.send("?")
        process.expect("Esc closes")
        process.send("?q")
        process.expect(pexpect.EOF)
        assert process.before.count(LEFT) == 1
        assert process.before.rindex(LEFT) < process.before.index(b"supervised")
    process.wait()
    assert process.exitstatus == 0


def test_what_goes_wrong_before_the_app_is_one_line(log: Path, tmp_path: Path) -> None:
    (tmp_path / "no-folder").touch()
    with attaching(log, XDG_STATE_HOME=str(tmp_path / "no-folder")) as process:
        process.expect(pexpect.EOF)
        assert b"set XDG_STATE_HOME to a folder of yours" in process.before
        assert b"\x1b" not in process.before
    process.wait()
    assert process.exitstatus == 2
    assert not os.path.isdir(tmp_path / "no-folder")


def test_what_pre_flight_found_stands_on_the_usual_screen(tmp_path: Path) -> None:
    with on_a_terminal("run", "--", "sh", "-c", "sleep 1", cwd=tmp_path) as process:
        process.expect_exact(b"starting sh\r\n")
        process.expect_exact("✓ run folder: ".encode())
        assert ENTERED not in process.before
        process.expect("attempt 1")
        process.send("q")
        process.expect(pexpect.EOF)
        assert process.before.count(LEFT) == 1
    process.wait()
    run = only_run(tmp_path)
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 30)


@pytest.mark.e2e
def test_who_leaves_a_failed_run_gets_the_code_of_the_failure(tmp_path: Path) -> None:
    """The script's own usage error, exit code 2 of argparse, is a failure of the job: 1, with a screen and without one."""
    script = tmp_path / "train.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n", encoding="utf-8")
    job = ("--", sys.executable, str(script), "--nope", "1")
    with on_a_terminal("run", *job, cwd=tmp_path) as process:
        process.expect("usage_error")
        run = only_run(tmp_path)
        assert wait_until(lambda: isinstance(read_state(run.node().journal).condition, HeldOpen), 60)
        process.send("q")
        process.expect(pexpect.EOF)
    process.wait()
    assert process.exitstatus == 1
    assert read_state(run.node().journal).attempts[0].exit_code == 2
    assert stoker("stop", run.run_id, cwd=tmp_path).code == 0  # it would wait for a person for half a minute
    (tmp_path / "headless").mkdir()
    assert run_headless(*job, cwd=tmp_path / "headless")[0].code == 1


def test_a_refused_start_leaves_one_line_and_the_terminal_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n", encoding="utf-8")
    with on_a_terminal("run", "--python", "/bin/false", "train.py", cwd=tmp_path) as process:
        process.expect(pexpect.EOF)
        assert b"\x1b" not in process.before
        said = b"stoker run: --python /bin/false: does not run as a Python interpreter"
        assert process.before.splitlines()[-1].startswith(said)
        assert process.before.count(b"stoker run") == 1
    process.wait()
    assert process.exitstatus == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_interrupted_while_it_starts_nothing_is_left_on_the_terminal(tmp_path: Path) -> None:
    slow = tmp_path / "python"
    asked = tmp_path / "asked"
    slow.write_text(f"#!/bin/sh\ntouch {asked}\nexec sleep 30\n", encoding="utf-8")
    slow.chmod(0o755)
    (tmp_path / "train.py").touch()
    with on_a_terminal("run", "--python", str(slow), "train.py", cwd=tmp_path) as process:
        # An interrupt within an import's exec() ends Python by SIGINT itself (130 too, in a shell): all is loaded by then.
        process.expect_exact("starting")
        assert b"\x1b" not in process.before
        assert wait_until(asked.exists, 30)
        process.kill(signal.SIGINT)
        process.expect(pexpect.EOF)
        assert b"\x1b" not in process.before
    process.wait()
    assert process.exitstatus == 130


def test_the_list_of_runs_without_a_run(tmp_path: Path) -> None:
    with on_a_terminal("--ascii", cwd=tmp_path) as process:
        process.expect_exact("stoker attach train.log")
        process.send("q")
        process.expect(pexpect.EOF)
    process.wait()
    assert process.exitstatus == 0
