"""Driving the real `stoker` command on real children, and reading what it left on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from supervisor.run import events as ev
from supervisor.run.journal import JournalReader, read_state
from supervisor.run.paths import RunPaths
from supervisor.run.state import RunState
from tests.conftest import wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
JOB = str(SCRIPTS / "job.py")
STOKER = (sys.executable, "-m", "supervisor")
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """A finished `stoker` command."""

    code: int
    out: str
    err: str


def stoker(*args: str, cwd: Path, timeout_s: float = DEADLINE_S, env: dict[str, str] | None = None) -> Done:
    """Run `stoker ARGS` to its end."""
    done = subprocess.run(
        [*STOKER, *args],
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The test's environment, with this checkout importable from any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **(extra or {})}


def put(path: Path, text: str) -> None:
    """Write what a running child polls for, so that it never reads a file that was opened and not yet written."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def run_headless(*args: str, cwd: Path, timeout_s: float = DEADLINE_S) -> tuple[Done, RunPaths, RunState]:
    """`stoker run --no-ui ARGS` in `cwd`; the run it made and its final state."""
    done = stoker("run", "--no-ui", "--python", sys.executable, *args, cwd=cwd, timeout_s=timeout_s)
    run = only_run(cwd)
    return done, run, read_state(run.node().journal)


def only_run(cwd: Path) -> RunPaths:
    """The one run below `cwd`/runs."""
    found = [p for p in (cwd / "runs").iterdir() if p.is_dir() and not p.is_symlink()]
    assert len(found) == 1, found
    return RunPaths(found[0])


def facts(run: RunPaths) -> list[ev.Event]:
    """All facts of a run."""
    return JournalReader(run.node().journal).read()


@contextmanager
def background(*args: str, cwd: Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """`stoker ARGS` running while the block runs; ended with it."""
    process = subprocess.Popen(
        [*STOKER, *args],
        cwd=cwd,
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def wait_for_run(cwd: Path, deadline_s: float = 60.0) -> RunPaths:
    """The run that is being started below `cwd`/runs, once its journal exists."""

    def ready() -> bool:
        folder = cwd / "runs"
        return folder.is_dir() and any(
            p.is_dir() and not p.is_symlink() and RunPaths(p).node().journal.exists()
            for p in folder.iterdir()
        )

    assert wait_until(ready, deadline_s), "no run was started"
    return only_run(cwd)


def wait_for_state(run: RunPaths, condition: Sequence[type] | type, deadline_s: float = 60.0) -> RunState:
    """The state once its condition is one of `condition`."""
    wanted = tuple(condition) if isinstance(condition, Sequence) else (condition,)
    assert wait_until(
        lambda: isinstance(read_state(run.node().journal).condition, wanted), deadline_s, 0.1
    ), f"still {read_state(run.node().journal).condition}"
    return read_state(run.node().journal)


def wait_for_step(run: RunPaths, step: int, deadline_s: float = 60.0) -> RunState:
    """The state once some attempt has reached `step`."""

    def reached() -> bool:
        attempt = read_state(run.node().journal).attempt
        return attempt is not None and attempt.last_step is not None and attempt.last_step >= step

    assert wait_until(reached, deadline_s, 0.1), (
        f"step {step} was not reached: {read_state(run.node().journal)}"
    )
    return read_state(run.node().journal)
