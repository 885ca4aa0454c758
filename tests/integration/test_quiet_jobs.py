"""Quiet ranks under real keepers, with short times: what sleeps is left alone, however the run is watched; a lock is ended.

The ranks are small Python processes that meet in a collective of their own making, under the name and path of PyTorch's: what the
keeper sees of them are real stacks, system calls and environments. With torch, and at full length: test_hangs.py.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run.events import Outcome, RequestKind
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.state import Finished
from supervisor.sources.stacks.python_stacks import find_py_spy
from tests.conftest import wait_until
from tests.integration.harness import background, facts, only_run, state_of, stoker, wait_for_run
from tests.views.tui.wire import terminal

COLLECTIVE = """
import os, socket

def init_process_group(folder, rank, world):
    global links
    path = f"{folder}/meet"
    if rank:
        links = [socket.socket(socket.AF_UNIX)]
        while links[0].connect_ex(path):
            pass
        return
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    links = [listening.accept()[0] for _ in range(world - 1)]

def all_reduce(rank):
    for link in links:
        link.recv(1) if rank == 0 else link.send(b"x")
    for link in links:
        link.send(b"x") if rank == 0 else link.recv(1)
"""
RANK = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1] + "/site-packages")
from torch.distributed import distributed_c10d as dist
folder, how, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(folder, rank, world)

def late():
    if how == "sleep":
        time.sleep(seconds)
    else:
        threading.Event().wait()

while not os.path.exists(folder + "/gate"):
    time.sleep(0.05)
for step in range(1, 41):
    time.sleep(0.1)
    if step == 30 and rank == 1:
        late()
    dist.all_reduce(rank)
    if rank == 0:
        print(f"step {step}/40 loss: {3 / step:.4f} lr: 1.0e-03", flush=True)
"""
LAUNCHER = """
import os, subprocess, sys
def env(rank):
    return {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
ranks = [subprocess.Popen([sys.executable, sys.argv[1] + "/rank.py", *sys.argv[1:]], env=env(rank)) for rank in (0, 1)]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""
SHORT = "[hang]\nact_s = 2.0\nrounds_apart_s = 1.0\ncountdown_s = {countdown_s}\n"
RESUME = ("--resume-knob", "--resume=auto")
PAUSE_S = 9.0

pytestmark = pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")


def job(cwd: Path, how: str, countdown_s: float = 2.0) -> tuple[str, ...]:
    """The words of a job in `cwd` whose rank 1 is late at step 30."""
    package = cwd / "site-packages" / "torch" / "distributed"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "distributed_c10d.py").write_text(COLLECTIVE, encoding="utf-8")
    (cwd / "rank.py").write_text(RANK, encoding="utf-8")
    (cwd / "launcher.py").write_text(LAUNCHER, encoding="utf-8")
    (cwd / "stoker.toml").write_text(SHORT.format(countdown_s=countdown_s), encoding="utf-8")
    return ("--", sys.executable, str(cwd / "launcher.py"), str(cwd), how, str(PAUSE_S))


def let_go(cwd: Path) -> RunPaths:
    """The run in `cwd`, whose ranks begin now that its keeper has found them: from the first step on it sees their pace."""
    run = wait_for_run(cwd)

    def known() -> bool:
        attempt = state_of(run).attempt
        return attempt is not None and len(attempt.ranks) == 2

    assert wait_until(known, 90, 0.1)
    (cwd / "gate").touch()
    return run


def advisories(run: RunPaths) -> list[str]:
    return [fact.code for fact in facts(run) if isinstance(fact, ev.Advisory)]


@pytest.mark.e2e
def test_a_pause_survives_however_the_run_is_watched_and_whether_or_not_it_resumes(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        runs: dict[str, Path] = {}
        screens = []
        for mode in ("headless", "detached", "screen"):
            for resume in ((), RESUME):
                cwd = runs[f"{mode} {resume}"] = tmp_path / f"{mode}{len(resume)}"
                cwd.mkdir()
                words = job(cwd, "sleep")
                match mode:
                    case "headless":
                        stack.enter_context(background("run", "--no-ui", *resume, *words, cwd=cwd))
                    case "detached":
                        assert stoker("run", "--detach", *resume, *words, cwd=cwd).code == 0
                    case _:
                        screens.append(stack.enter_context(terminal("run", *resume, *words, cwd=cwd)))

        for cwd in runs.values():
            let_go(cwd)

        def over() -> bool:
            for screen in screens:
                screen.take()  # a full pty would stop the app
            return all(read_state(only_run(cwd).node().journal).is_over for cwd in runs.values())

        assert wait_until(over, 150, 0.3)
    for mode, cwd in runs.items():
        run = only_run(cwd)
        state, told = state_of(run), facts(run)
        assert isinstance(state.condition, Finished), mode
        assert state.condition.outcome is Outcome.SUCCEEDED, mode
        assert len(state.attempts) == 1, mode
        # It was asked about well after a hang would have been ended.
        assert "hang_late_may_come" in advisories(run), mode
        reasons = [fact.why for fact in told if isinstance(fact, ev.OnlyFlagged)]
        assert any(why.startswith("rank 1 sleeps in sleep() at rank.py:") for why in reasons), (mode, reasons)
        assert not [fact for fact in told if isinstance(fact, ev.HangCountdown | ev.HangFound)], mode


@pytest.mark.e2e
def test_without_a_resume_it_is_counted_down_once_somebody_looks_and_esc_keeps_waiting(
    tmp_path: Path,
) -> None:
    words = job(tmp_path, "lock", countdown_s=30.0)
    with background("run", "--no-ui", "--no-retry", *words, cwd=tmp_path) as keeper:
        run = let_go(tmp_path)
        assert wait_until(lambda: "hang_unwatched" in advisories(run), 60, 0.2), advisories(run)
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
