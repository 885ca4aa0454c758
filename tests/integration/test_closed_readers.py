"""Output that nobody reads any more: what follows ends at once, what only prints ends quietly, and a training goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from supervisor.run.state import Finished
from tests.conftest import not_none, wait_until
from tests.integration.harness import JOB, STOKER, detached, environment, only_run, state_of, wait_for_step
from tests.tiers import first

# Prints 300 steps, is quiet until the file `gate` exists, prints more and leaves with the code.
QUIET = ("--", sys.executable, "-u", JOB, "--steps", "600", "--step-time", "0", "--gate", "gate", "--code")
# As a shell reports a program that SIGPIPE ended.
UNREAD = 141


@contextmanager
def read_by_us(*args: str, cwd: Path, stdin: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """`stoker ARGS`, whose output we read: all of it goes into one pipe."""
    with subprocess.Popen(
        [*STOKER, *args],
        cwd=cwd,
        env=environment(),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def leaves(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Closes the reading end; the exit code and what stderr says."""
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    code = process.wait(30)
    return code, process.stderr.read().decode()


@pytest.fixture(scope="module")
def quiet_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run that lives and prints nothing more."""
    folder = tmp_path_factory.mktemp("quiet")
    run = detached(folder, *QUIET, "0")
    try:
        wait_for_step(run, 300)
        yield folder
    finally:
        (folder / "gate").touch()
        assert wait_until(lambda: state_of(run).is_over, 60)


@pytest.mark.fault(
    "hostile input", "the reader of `attach` goes away, and no line comes", "`attach` ends at once"
)
@pytest.mark.parametrize("form", first(1, [["--json"], []]))
def test_attach_ends_with_its_reader_though_no_line_comes(quiet_run: Path, form: list[str]) -> None:
    with read_by_us("attach", "--no-ui", *form, cwd=quiet_run) as process:
        assert not_none(process.stdout).readline()
        begun = time.monotonic()
        code, err = leaves(process)
        assert (code, err) == (UNREAD, "")
        assert time.monotonic() - begun < 10
    assert not state_of(only_run(quiet_run)).is_over, "looking ends nothing"


@pytest.mark.fault(
    "processes", "the reader of `run --no-ui` goes away", "training continues, and its exit code counts"
)
def test_a_run_without_a_screen_goes_on_and_keeps_its_code(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*STOKER, "run", "--no-ui", "--max-retries", "0", *QUIET, "3"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()  # both streams: `2>&1 | head -1`
    run = only_run(tmp_path)
    wait_for_step(run, 300)
    (tmp_path / "gate").touch()
    assert process.wait(60) == 1
    state = state_of(run)
    assert isinstance(state.condition, Finished)
    assert state.attempt is not None
    assert (state.attempt.last_step, state.attempt.exit_code) == (599, 3)
    (log,) = run.artifacts.glob("console-*.log")
    assert "step 599" in log.read_text(encoding="utf-8"), "the story is kept"
