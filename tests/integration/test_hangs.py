"""Hangs of real torchrun children: flagged, their stacks told, ended, restarted; and healthy silences left alone."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.events import Outcome, RequestKind, StopWhy
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass
from supervisor.run.state import Finished, RunState
from tests.conftest import not_none, wait_until
from tests.integration.harness import (
    SCRIPTS,
    Done,
    background,
    detached,
    end_of,
    facts,
    lose_keeper,
    only_run,
    state_of,
    stoker,
    wait_for_run,
    wait_for_state,
    wait_for_step,
)
from tests.tiers import first
from tests.views.tui.wire import terminal

TRAINING = str(SCRIPTS / "training.py")
HANG_LINE = next(
    number
    for number, line in enumerate(Path(TRAINING).read_text(encoding="utf-8").splitlines(), start=1)
    if "threading.Event().wait()" in line
)
OURS = {"ended by stoker after the hang", "lost the connection to a peer", "lost the connection to the store"}
# The promise is 3 s; a loaded machine gets five times that.
FLAG_DEADLINE_S = 15.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def settings(cwd: Path, act_s: float, *more: str, countdown_s: float = 2.0) -> None:
    """Short times in which all that is to happen happens; what the run came back from still counts threefold."""
    short = ("rounds_apart_s = 1.0", f"countdown_s = {countdown_s}")
    lines = ["[hang]", f"act_s = {act_s}", *short, *more, ""]
    (cwd / "stoker.toml").write_text("\n".join(lines), encoding="utf-8")


RESUMES = ("--resume-knob", "--resume=auto", "--python", sys.executable, "--nproc-per-node")


def launch(cwd: Path, *args: str, path: str | None = None) -> tuple[Done, RunPaths, RunState]:
    env = {"PATH": path} if path is not None else None
    done = stoker("run", "--no-ui", *RESUMES, "3", TRAINING, *args, cwd=cwd, timeout_s=240, env=env)
    run = only_run(cwd)
    return done, run, state_of(run)


def advisories(run: RunPaths) -> list[str]:
    """What was advised so far."""
    return [fact.code for fact in facts(run) if isinstance(fact, ev.Advisory)]


def path_with_denied_py_spy(folder: Path) -> str:
    """A PATH on which py-spy is what Yama, or a process that is not dumpable, makes of it."""
    folder.mkdir()
    program = folder / "py-spy"
    program.write_text(
        "#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def check_flagged(run: RunPaths) -> list[ev.Event]:
    """The silence is said in time, and rank 1 differs from the others; all facts."""
    told = facts(run)
    flagged = next(fact for fact in told if isinstance(fact, ev.StallFlagged))
    stacks = next(fact for fact in told if isinstance(fact, ev.StacksTaken))
    assert flagged.waited_s < FLAG_DEADLINE_S
    assert stacks.t - flagged.since < FLAG_DEADLINE_S
    assert stacks.odd == (1,), stacks
    return told


def check_hang(done: Done, run: RunPaths, state: RunState) -> list[ev.Event]:
    """Flagged in time, named, ended, restarted once, finished."""
    assert done.code == 0, done.out + done.err
    assert end_of(state).outcome is Outcome.SUCCEEDED
    assert len(state.attempts) == 2, done.out
    first = state.attempts[0]
    assert not_none(first.stop).why is StopWhy.HANG
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.rank) == (FailureClass.HANG, 1), first.verdict
    told = check_flagged(run)
    assert first.hang is not None
    assert first.hang.artifact is not None
    assert (run.root / first.hang.artifact).is_file()
    # What stoker sent itself is blamed on nobody: neither in the verdict nor on the way to it.
    assert not [fact for fact in told if isinstance(fact, ev.EvidenceSeen) and fact.failure == "terminated"]
    waiting = [item for item in first.verdict.consequences if item.words.startswith("waited for rank 1")]
    assert {item.rank for item in waiting} == {0, 2}, first.verdict.consequences
    others = {item.words for item in first.verdict.consequences if item not in waiting}
    assert others <= OURS, first.verdict.consequences
    assert not_none(first.verdict.cause).text.startswith("rank 1 in "), first.verdict.cause
    assert "collective" in first.verdict.advice[0] or "kernel" in first.verdict.advice[0], (
        first.verdict.advice
    )
    return told


def check_code(run: RunPaths, hang: ev.HangFound) -> None:
    """The verdict points at the user's own frame."""
    assert hang.artifact is not None
    assert hang.line is not None
    lines = (run.root / hang.artifact).read_text(encoding="utf-8").splitlines()
    assert "wait_for_ever" in lines[hang.line - 1]


def test_a_hang_before_a_collective_is_named_with_its_line_and_restarted(tmp_path: Path) -> None:
    settings(tmp_path, 4.0)
    done, run, state = launch(tmp_path, "--hang-at", "18")
    check_hang(done, run, state)
    hang = not_none(state.attempts[0].hang)
    assert "2 ranks in all_reduce" in hang.text, hang
    assert f"rank 1 in Event.wait() at training.py:{HANG_LINE}" in hang.text, hang
    assert hang.rule == "lock_for_ever"
    assert "hang: will be ended in 2 s: rank 1 in Event.wait()" in done.out, "said before it was done"
    check_code(run, hang)
    judged = stoker("diagnose", str(run.root), "--attempt", "1", "--json", cwd=tmp_path)
    assert '"failure":"hang"' in judged.out
    assert '"rank":1' in judged.out


def test_what_may_come_by_itself_is_named_within_seconds_and_only_flagged(tmp_path: Path) -> None:
    """A person who wants it ended gives `--end-hangs` as well."""
    settings(tmp_path, 4.0)
    words = ("run", "--no-ui", *RESUMES, "3", TRAINING, "--hang-at", "18", "--hang-how", "socket")
    with background(*words, cwd=tmp_path) as keeper:
        run = wait_for_run(tmp_path)
        assert wait_until(lambda: "hang_late_may_come" in advisories(run), 150, 0.2), advisories(run)
        told = check_flagged(run)
        why = next(
            fact.why for fact in told if isinstance(fact, ev.OnlyFlagged) and fact.rule == "late_may_come"
        )
        # Well beyond what would be ended: the silence is asked about again and again.
        assert not wait_until(lambda: keeper.poll() is not None, 8)
        control.send(run.control, RequestKind.STOP_NOW)
        assert keeper.wait(90) == 5
    state = state_of(run)
    assert len(state.attempts) == 1
    assert not [fact for fact in facts(run) if isinstance(fact, ev.HangCountdown | ev.HangFound)]
    assert why.startswith("rank 1 waits for the network in recvfrom() at training.py:")


def test_without_a_resume_it_is_counted_down_once_a_person_looks_and_esc_keeps_waiting(
    tmp_path: Path,
) -> None:
    settings(tmp_path, 2.0, countdown_s=30.0)
    flags = ("--no-ui", "--no-retry", "--nproc-per-node", "2", "--python", sys.executable)
    with background("run", *flags, TRAINING, "--hang-at", "18", cwd=tmp_path) as keeper:
        run = wait_for_run(tmp_path)
        assert wait_until(lambda: "hang_unwatched" in advisories(run), 150, 0.2), advisories(run)
        with terminal("attach", cwd=tmp_path) as screen:
            screen.wait_for("hang: ending in", "Esc keep waiting")
            screen.press("\x1b")
            screen.until(lambda: any(isinstance(fact, ev.HangKept) for fact in facts(run)))
            assert keeper.poll() is None
            screen.press("q")
            screen.wait_for_exit()
        assert not list(run.control.glob("viewer-*"))
        assert not wait_until(lambda: keeper.poll() is not None, 5), "it waits on for this silence"
        control.send(run.control, RequestKind.STOP_NOW)
        assert keeper.wait(60) == 5


@pytest.mark.thorough
def test_an_endless_loop_is_ended_later(tmp_path: Path) -> None:
    """As soon as a person wants it ended: the deadlocks below."""
    settings(tmp_path, 4.0, "busy_act_s = 25.0")
    done, run, state = launch(tmp_path, "--hang-at", "18", "--hang-how", "loop")
    told = check_hang(done, run, state)
    hang = not_none(state.attempts[0].hang)
    assert (hang.rule, hang.waited_s > 25) == ("computes_for_ever", True)
    assert "late_computes" in {fact.rule for fact in told if isinstance(fact, ev.OnlyFlagged)}


@pytest.mark.fault("recovery", "a rank is stopped by a signal for a while", "flagged only; it continues")
def test_a_rank_that_a_signal_stopped_is_only_flagged_and_goes_on(tmp_path: Path) -> None:
    settings(tmp_path, 2.0)
    with background("run", "--no-ui", *RESUMES, "2", TRAINING, "--steps", "70", cwd=tmp_path) as keeper:
        run = wait_for_run(tmp_path)
        wait_for_step(run, 20, 120)
        pid = not_none(state_of(run).attempts[-1].ranks[1].pid)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert wait_until(lambda: "hang_no_python_stacks" in advisories(run), 120, 0.2)
            reasons = [fact.why for fact in facts(run) if isinstance(fact, ev.OnlyFlagged)]
            assert "rank 1 is stopped by a signal" in reasons
        finally:
            os.kill(pid, signal.SIGCONT)
        assert keeper.wait(200) == 0
    assert len(state_of(run).attempts) == 1


DEADLOCKS = [
    ("lock", "missing_in_barrier", "loop"),
    ("mismatched_collective", "sleep", "blocked_read", "dead_loader"),
]
ON_DEMAND = ("--no-ui", "--end-hangs", "--nproc-per-node", "2", "--python", sys.executable)


@pytest.mark.fault(
    "recovery", "seven kinds of deadlock, each with heartbeats", "with both flags, stoker ends each one"
)
@pytest.mark.parametrize("ways", first(1, [(ways,) for ways in DEADLOCKS]), ids=" ".join)
def test_deadlocks_behind_heartbeats_are_flagged_and_ended_where_a_person_wants_that(
    tmp_path: Path, ways: tuple[str, ...]
) -> None:
    """One run: each attempt deadlocks in another way, further on than the one before; the last one finishes."""
    flags = (*ON_DEMAND, "--hang-timeout", "4", "--max-retries", "8", "--restart-from-scratch")
    done = stoker("run", *flags, str(SCRIPTS / "deadlocks.py"), *ways, cwd=tmp_path, timeout_s=380)
    assert done.code == 0, done.out + done.err
    run = only_run(tmp_path)
    told = facts(run)
    *deadlocked, last = state_of(run).attempts
    assert [view.stop.why if view.stop is not None else None for view in deadlocked] == [StopWhy.HANG] * len(
        ways
    )
    assert last.stop is None
    assert {view.verdict.failure for view in deadlocked if view.verdict is not None} == {FailureClass.HANG}
    lines = [view.hang.text if view.hang is not None else "" for view in deadlocked]
    assert all("deadlocks.py" in line for line in lines), lines
    flagged = {fact.attempt: fact for fact in told if isinstance(fact, ev.StallFlagged)}
    assert all(flagged[number].waited_s < FLAG_DEADLINE_S for number in range(1, len(ways) + 1))
    for fact in told:
        if isinstance(fact, ev.HangFound):
            # The limit and a countdown as long; what a loaded machine adds is not a minute.
            assert 8.0 <= fact.waited_s < 60.0, fact
            assert fact.artifact is not None, "the stacks are taken first"


@pytest.mark.fault(
    "recovery", "a healthy job completes no step for longer than the limit", "it is neither blamed nor ended"
)
def test_a_healthy_training_that_evaluates_saves_compiles_and_uploads_is_not_ended(tmp_path: Path) -> None:
    """Ten phases without a step behind a heartbeat; those that show what they are last longer than the limit."""
    flags = (*ON_DEMAND, "--hang-timeout", "5", "--max-retries", "0")
    done = stoker("run", *flags, str(SCRIPTS / "quiet_phases.py"), cwd=tmp_path, timeout_s=380)
    assert done.code == 0, done.out + done.err
    told = facts(only_run(tmp_path))
    assert not [fact for fact in told if isinstance(fact, ev.HangCountdown | ev.HangFound)]
    rows = (tmp_path / "phases.jsonl").read_text(encoding="utf-8").splitlines()
    phases = [json.loads(row) for row in rows]
    assert len(phases) == 10
    flagged = [fact.t for fact in told if isinstance(fact, ev.StallFlagged)]
    accused = {name for name, began, ended in phases for t in flagged if began <= t <= ended}
    assert accused.isdisjoint({"prose", "counted", "drawn"}), accused


@pytest.mark.fault("recovery", "the first step never comes", "the attempt ends after --start-timeout")
def test_a_start_that_never_steps_is_ended_once_again_and_then_held(tmp_path: Path) -> None:
    flags = ("--no-ui", "--start-timeout", "5", "--restart-from-scratch", "--nproc-per-node", "1")
    (tmp_path / "stoker.toml").write_text("[hang]\ncountdown_s = 1.0\n", encoding="utf-8")
    (tmp_path / "waits.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(600)\n")
    done = stoker("run", *flags, "--python", sys.executable, "waits.py", cwd=tmp_path, timeout_s=200)
    run = only_run(tmp_path)
    state = state_of(run)
    assert done.code == 4, done.out + done.err
    assert [view.stop.why if view.stop is not None else None for view in state.attempts] == [StopWhy.HANG] * 2
    for view in state.attempts:
        assert view.hang is not None
        assert view.hang.artifact is not None
        assert "waits.py:3" in view.hang.text


@pytest.mark.thorough
def test_with_py_spy_denied_and_faulthandler_asked_for_the_line_is_named_too(tmp_path: Path) -> None:
    settings(tmp_path, 4.0, "faulthandler = true")
    done, run, state = launch(tmp_path, "--hang-at", "18", path=path_with_denied_py_spy(tmp_path / "bin"))
    check_hang(done, run, state)
    hang = not_none(state.attempts[0].hang)
    assert hang.line_at == f"training.py:{HANG_LINE}", hang
    check_code(run, hang)


@pytest.mark.fault("recovery", "a hang after the keeper was replaced", "found by the adopting keeper")
def test_a_keeper_that_adopted_the_run_finds_the_hang(tmp_path: Path) -> None:
    settings(tmp_path, 8.0)
    run = detached(tmp_path, *RESUMES, "3", TRAINING, "--hang-at", "18")

    assert wait_until(lambda: any(isinstance(fact, ev.StallFlagged) for fact in facts(run)), 90)
    lose_keeper(run)
    assert stoker("attach", run.run_id, "--adopt", cwd=tmp_path).code == 0
    state = wait_for_state(run, Finished, 180)
    first = state.attempts[0]
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.rank) == (FailureClass.HANG, 1), first.verdict
    assert end_of(state).outcome is Outcome.SUCCEEDED
