"""`stoker continue`: the next attempt of a run of which nothing lives, and of no other; and honest adoption."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from supervisor.cli.main import main
from supervisor.cli.runs import texts_of
from supervisor.keeper.process.members import find_members
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.events import Outcome
from supervisor.run.journal import read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.state import HeldOpen, Running, RunState
from supervisor.sources.processes import is_alive, send_signal
from supervisor.views.model.run_list import rows_of
from tests.conftest import not_none, wait_until
from tests.integration.harness import (
    STOKER,
    detached,
    end_of,
    environment,
    lose_keeper,
    only_run,
    put,
    state_of,
    stoker,
    wait_for_state,
    wait_for_step,
)
from tests.integration.test_forged_folders import ENDED, HELD, Scene, forged, names_stranger, scene, trains
from tests.tiers import first

__all__ = ["scene", "trains"]
pytestmark = pytest.mark.timeout(300)

# Steps 1 to 3, then as the file says that is named first; with --resume it continues at step 4 and is done at 6.
TRAIN = """
import os, sys, time
from pathlib import Path
resumed = "--resume" in sys.argv
for step in range(4 if resumed else 1, 7):
    print(f"step {step}/6 loss: {6 / step:.3f}", flush=True)
    if step == 3:
        while not Path("how").exists():
            time.sleep(0.02)
        how = Path("how").read_text()
        if how != "continue":
            sys.exit(int(how))
print("token", os.environ.get("MY_TOKEN"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the script, entered."""
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job(*flags: str) -> list[str]:
    knob = ["--no-retry", "--resume-knob", "--resume", "--python", sys.executable]
    return [*knob, *flags, "--", sys.executable, "train.py"]


def waiting(folder: Path, *flags: str) -> RunPaths:
    """A run that waits at step 3."""
    run = detached(folder, *job(*flags))
    wait_for_step(run, 3)
    return run


def lose_all(run: RunPaths) -> None:
    """The keeper, the launcher and what it launched: as on a machine whose power is cut."""
    lose_keeper(run)
    ours = find_members(str(run.root)).ours
    assert ours
    for process in ours:
        send_signal(process)
    assert wait_until(lambda: not any(map(is_alive, ours)), 30)


def outcome(run: RunPaths) -> tuple[Outcome, int]:
    """How the run ended, once it has, and in how many attempts."""
    assert wait_until(lambda: state_of(run).is_over, 60)
    return end_of(state_of(run)).outcome, len(state_of(run).attempts)


def is_continued(run: RunPaths) -> RunState:
    """The state of a run that was gone on with, in its second attempt, by its resume flag, to its end."""
    assert outcome(run) == (Outcome.SUCCEEDED, 2)
    state = state_of(run)
    assert state.attempts[1].argv[-1] == "--resume"
    assert (state.attempts[1].first_step, state.attempts[1].last_step) == (4, 6)
    assert wait_until(lambda: not keeper_is_alive(run.node().lock), 10)
    return state


def test_a_failed_run_goes_on_at_the_next_attempt_and_a_succeeded_one_does_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(folder / "how", "3")
    assert main(["run", *job("--no-ui")]) == 1
    run = only_run(folder)
    ended_t = state_of(run).ended_t
    assert texts_of(*rows_of([run], {}))["state"] == "failed"
    capsys.readouterr()
    assert main(["continue", run.run_id, "--yes", "--no-ui"]) == 0
    said = capsys.readouterr()
    assert "train.py --resume" in said.err, "what will run is said first"
    assert "attempt 1 started" not in said.out, "what was said when it happened is not said again"
    state = is_continued(run)
    assert ended_t is not None
    assert state.ended_t is not None
    assert state.ended_t > ended_t
    assert state.attempts[0].decided_by == state.attempts[1].reason.partition(" continued it")[0]
    assert state.attempts[1].recovery is None, "the hours until somebody continued it are no recovery"
    assert main(["continue", run.run_id, "--yes"]) == 3
    assert "it succeeded: finished at step 6" in capsys.readouterr().err
    assert main(["continue", "nobody", "--yes"]) == 2


@pytest.mark.parametrize("booted", first(1, [True, False]))
def test_a_run_whose_processes_are_all_gone_goes_on(folder: Path, booted: bool) -> None:
    run = waiting(folder)
    lose_all(run)
    if booted:  # and by now the pid that it had is a stranger's
        journal = run.node().journal
        text = journal.read_text(encoding="utf-8")
        boot = not_none(read_state(journal).boot_id)
        journal.write_text(text.replace(boot, "another-boot"), encoding="utf-8")
        pid = run.node().attempt(1).root / "pid"
        pid.write_text(pid.read_text(encoding="utf-8").replace(boot, "another-boot"), encoding="utf-8")
    before = state_of(run)
    assert isinstance(before.condition, Running)
    adopted = stoker("attach", "--adopt", run.run_id, cwd=folder)
    assert adopted.code == 3
    assert "`stoker continue" in adopted.err
    put(folder / "how", "continue")
    done = stoker("continue", run.run_id, "--yes", "--no-ui", cwd=folder)
    assert done.code == 0, done.err
    state = is_continued(run)
    assert state.attempts[0].exit_code is None


@pytest.mark.e2e
@pytest.mark.fault(
    "recovery", "a run succeeds without a keeper, and is continued", "nothing is started again"
)
def test_what_ended_well_while_nobody_looked_is_not_started_again(folder: Path) -> None:
    run = waiting(folder)
    lose_keeper(run)
    refused = stoker("continue", run.run_id, "--yes", cwd=folder)
    assert refused.code == 3
    assert "it lives: pids" in refused.err
    put(folder / "how", "continue")
    assert wait_until(run.node().attempt(1).exit.exists, 60)
    assert wait_until(lambda: not find_members(str(run.root)).ours, 30)
    done = stoker("continue", run.run_id, "--yes", cwd=folder)
    assert done.code == 0, done.err
    assert "it had succeeded, nothing is started" in done.out
    assert outcome(run) == (Outcome.SUCCEEDED, 1)
    assert state_of(run).attempts[0].last_step == 6, "its log was read to the end"


@pytest.mark.e2e
@pytest.mark.parametrize("umask", first(1, [0o002, 0o022]))
def test_an_honest_orphan_is_adopted_and_a_held_one_goes_on(folder: Path, umask: int) -> None:
    """Whatever the umask is; a folder of runs that a group may write to is only warned of."""
    before = os.umask(umask)
    try:
        run = waiting(folder, "--hold", "600")
    finally:
        os.umask(before)
    (folder / "runs").chmod(0o775)
    lose_keeper(run)
    done = stoker("attach", "--adopt", run.run_id, cwd=folder)
    assert done.code == 0, done.err
    assert f"the group of {folder / 'runs'} may exchange what lies in it" in done.err
    assert "takes over what lives of it: pids" in done.err
    put(folder / "how", "3")
    wait_for_state(run, HeldOpen)
    lose_keeper(run)
    assert stoker("attach", "--adopt", run.run_id, cwd=folder).code == 3
    done = stoker("continue", run.run_id, "--yes", "--no-ui", cwd=folder)
    assert done.code == 0, done.err
    is_continued(run)


@pytest.mark.e2e
def test_secrets_are_asked_for_and_never_started_as_stars(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-0123456789"
    put(folder / "how", "3")
    assert stoker("run", *job("--no-ui", "--env", f"MY_TOKEN={secret}"), cwd=folder).code == 1
    run = only_run(folder)
    before = run.node().journal.read_bytes()
    refused = stoker("continue", run.run_id, "--yes", "--no-ui", cwd=folder)
    assert refused.code == 2
    assert "MY_TOKEN: a secret, not kept on disk: set MY_TOKEN and try again" in refused.err
    assert run.node().journal.read_bytes() == before
    monkeypatch.setenv("MY_TOKEN", secret)
    done = stoker("continue", run.run_id, "--yes", "--no-ui", cwd=folder)
    assert done.code == 0, done.err
    assert "s3cr3t" not in done.out + done.err
    is_continued(run)
    assert f"token {secret}" in run.node().attempt(2).agent_log.read_text(encoding="utf-8")
    for path in run.root.rglob("*"):
        if path.is_file() and path.name != "agent.log":
            assert b"s3cr3t" not in path.read_bytes(), path


@pytest.mark.thorough
def test_who_adopts_a_run_with_a_secret_argument_is_told_that_it_is_not_restarted(folder: Path) -> None:
    """What lives is watched without it; the next attempt needs it, and is never started as stars."""
    run = detached(folder, *job(), "--api-key", "s3cr3t-0123456789")
    wait_for_step(run, 3)
    first = state_of(run).keeper_pid
    lose_keeper(run)
    adopted = stoker("attach", "--adopt", run.run_id, cwd=folder)
    assert adopted.code == 0, adopted.err
    assert wait_until(lambda: state_of(run).keeper_pid != first, 30)
    line = next(line for line in adopted.err.splitlines() if "not kept on disk" in line)
    assert "watched, but not restarted" in line
    assert "start the job again with `stoker run`" in line
    put(folder / "how", "continue")
    assert outcome(run) == (Outcome.SUCCEEDED, 1)


def test_what_was_asked_before_is_not_done(scene: Scene) -> None:
    root = forged(scene, *ENDED, HELD)
    run = RunPaths(root)
    args = control.RequestArgs(argv=(str(root.parent / "other"),))
    asked = control.send(run.control, ev.RequestKind.RESTART_WITH, args=args)
    assert main(["continue", "--yes", "--no-ui", str(root)]) == 0
    assert state_of(run).answered[asked] == "asked before the run was continued"
    assert not (root.parent / "other").exists()
    assert not list(run.control.iterdir())


# -- what is asked on a terminal ---------------------------------------------------------------------------


@contextlib.contextmanager
def terminal(folder: Path, *words: str) -> Iterator[pexpect.spawn]:
    """`stoker WORDS` on a terminal."""
    process = pexpect.spawn(
        STOKER[0], [*STOKER[1:], *words], cwd=folder, env=environment(), timeout=60, encoding="utf-8"
    )
    try:
        yield process
    finally:
        process.close(force=True)


def ended(process: pexpect.spawn) -> int:
    process.expect(pexpect.EOF)
    process.close()
    return int(process.exitstatus if process.exitstatus is not None else -1)


@pytest.mark.fault(
    "processes", "a run is continued while a process has an unknown owner", "the user is asked"
)
def test_whose_a_process_is_only_a_person_can_say(scene: Scene) -> None:
    """A stranger that the files name is asked about, not waited for, and never signalled."""
    root = names_stranger(scene)
    with terminal(root.parent, "continue", "--yes", "--detach", str(root)) as asked:
        asked.expect(f"pid {scene.stranger.pid} \\(sleep\\), which lives")
        asked.sendline("n")
        assert ended(asked) == 3
    assert not (root.parent / "pwned").exists()
    with terminal(root.parent, "continue", "--detach", str(root)) as asked:
        asked.expect("which lives")
        asked.sendline("y")
        asked.expect("Start it")
        asked.sendline("y")
        assert ended(asked) == 0
    run = RunPaths(root)
    assert outcome(run) == (Outcome.SUCCEEDED, 2)
    assert is_alive(scene.stranger)


# -- from another host ---------------------------------------------------------------------------------------


def on_another_host(scene: Scene, *told: ev.Event) -> RunPaths:
    return RunPaths(forged(scene, *told, host="another-box", boot="another"))


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening takes a second, not 60."""
    monkeypatch.setattr("supervisor.keeper.process.takeover.WATCH_S", 1.0)
    monkeypatch.setattr("supervisor.keeper.process.takeover.LOOK_S", 0.05)


@pytest.mark.usefixtures("quickly")
@pytest.mark.fault(
    "processes",
    "a run is continued on another host while its keeper is alive",
    "the live keeper is noticed, and nothing starts",
)
def test_from_another_host_a_keeper_that_writes_is_heard(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lock does not reach us, and its clock is years away: that it is touched again is all that counts."""
    run = on_another_host(scene, *ENDED, HELD)
    run.node().lock.touch(mode=0o600)
    os.utime(run.node().lock, (1e9, 1e9))
    done = threading.Event()

    def keeper() -> None:
        turn = 0
        while not done.wait(0.1):
            turn += 1
            os.utime(run.node().lock, (1e9 + turn, 1e9 + turn))

    thread = threading.Thread(target=keeper)
    thread.start()
    try:
        assert main(["continue", "--yes", "--no-ui", str(run.root)]) == 3
    finally:
        done.set()
        thread.join()
    assert "keeper.lock is being written: a keeper lives, on another-box" in capsys.readouterr().err


@pytest.mark.e2e
def test_a_keeper_shows_that_it_lives(folder: Path) -> None:
    """Every few seconds, also while nothing is trained."""
    run = waiting(folder)
    lock = run.node().lock
    before = lock.stat().st_mtime_ns
    assert wait_until(lambda: lock.stat().st_mtime_ns != before, 30)
    assert stoker("stop", "--now", run.run_id, cwd=folder).code == 0


@pytest.mark.e2e
@pytest.mark.fault("processes", "two people continue a run at once", "one attempt is started")
def test_two_at_once_start_one(folder: Path) -> None:
    put(folder / "how", "3")
    assert stoker("run", *job("--no-ui"), cwd=folder).code == 1
    run = only_run(folder)
    command = [*STOKER, "continue", run.run_id, "--yes", "--no-ui"]
    both = [
        subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for process in both:
        process.communicate(timeout=60)
    assert min(process.returncode for process in both) == 0
    is_continued(run)
