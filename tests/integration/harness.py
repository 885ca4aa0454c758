"""Driving the real `stoker` command on real children, and reading what it left on disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from supervisor.run import events as ev
from supervisor.run.events import Outcome
from supervisor.run.journal import JournalReader, read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, Verdict
from supervisor.run.state import Finished, RunState
from tests.conftest import not_none, wait_until

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
    return done, run, state_of(run)


def only_run(cwd: Path) -> RunPaths:
    """The one run below `cwd`/runs."""
    found = [p for p in (cwd / "runs").iterdir() if p.is_dir() and not p.is_symlink()]
    assert len(found) == 1, found
    return RunPaths(found[0])


def facts(run: RunPaths, node: int = 0) -> list[ev.Event]:
    """All facts of a run that a node has journalled."""
    return JournalReader(run.node(node).journal).read()


def detached(cwd: Path, *args: str, env: dict[str, str] | None = None) -> RunPaths:
    """Start `stoker run --detach ARGS` in `cwd`; the run it made."""
    done = stoker("run", "--detach", *args, cwd=cwd, env=env)
    assert done.code == 0, done.err
    return RunPaths(cwd / "runs" / done.out.strip())


def kept_run() -> RunPaths:
    """The one observed run that `attach --keep` kept."""
    (kept,) = Path(os.environ["XDG_STATE_HOME"]).glob("stoker/kept/*")
    return RunPaths(kept)


def state_of(run: RunPaths, node: int = 0) -> RunState:
    """What a node's journal comes to, also before there is one."""
    journal = run.node(node).journal
    return read_state(journal) if journal.exists() else RunState()


def end_of(state: RunState) -> Finished:
    """How a run ended, which it must have."""
    assert isinstance(state.condition, Finished), state.condition
    return state.condition


def verdict_of(state: RunState, attempt: int = -1) -> Verdict:
    """The verdict of one of a run's attempts, by its place."""
    return not_none(state.attempts[attempt].verdict)


def decision_of(state: RunState, attempt: int = -1) -> Decision:
    """The decision after one of a run's attempts, by its place."""
    return not_none(state.attempts[attempt].decision)


def lose_keeper(run: RunPaths) -> None:
    """Kill the keeper of a run, and wait until it is gone."""
    os.kill(not_none(state_of(run).keeper_pid), signal.SIGKILL)
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 30)


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
        return any(not p.parents[2].is_symlink() for p in (cwd / "runs").glob("*/nodes/0/events.jsonl"))

    assert wait_until(ready, deadline_s), "no run was started"
    return only_run(cwd)


def wait_for_state(run: RunPaths, condition: Sequence[type] | type, deadline_s: float = 60.0) -> RunState:
    """The state once its condition is one of `condition`."""
    wanted = tuple(condition) if isinstance(condition, Sequence) else (condition,)
    reached = wait_until(lambda: isinstance(state_of(run).condition, wanted), deadline_s, 0.1)
    assert reached, f"still {state_of(run).condition}"
    return state_of(run)


def last_step(run: RunPaths) -> int:
    """The newest step of the newest attempt; 0 before the first."""
    attempt = state_of(run).attempt
    return (attempt.last_step or 0) if attempt is not None else 0


def wait_for_step(run: RunPaths, step: int, deadline_s: float = 60.0) -> RunState:
    """The state once some attempt has reached `step`."""
    reached = wait_until(lambda: last_step(run) >= step, deadline_s, 0.1)
    assert reached, f"step {step} was not reached: {state_of(run)}"
    return state_of(run)


def wait_for_end(run: RunPaths, deadline_s: float = 60.0) -> RunState:
    """The state of a run that has ended well."""
    state = wait_for_state(run, Finished, deadline_s)
    assert (end_of(state).outcome, end_of(state).exit_code) == (Outcome.SUCCEEDED, 0), state.condition
    return state
