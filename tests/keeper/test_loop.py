"""A keeper from start to end: its exit codes, signals, requests, full disks."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from supervisor.keeper import loop
from supervisor.keeper.loop import Keeper
from supervisor.keeper.planning.launch_plans import write_plan
from supervisor.keeper.process import attempt
from supervisor.keeper.process.child import SpawnError, spawn
from supervisor.policy import EXIT_STOPPED
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.arrivals import ArrivalReader
from supervisor.run.events import Outcome, RequestKind
from supervisor.run.journal import read_state
from supervisor.run.ownership import LockTaken, keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, FailureClass, Precondition, SpecChange
from supervisor.sources import signature_files as engine
from supervisor.sources.processes import is_alive, send_signal
from supervisor.sources.signature_files import default_cache_dir, load_engine
from tests.conftest import not_none, wait_until
from tests.disks import fill, small_disk
from tests.keeper.fakes import SLEEP, facts_of, job_of, plan_of, run_in, verdict_of
from tests.keeper.runs import (
    AGAIN,
    INTENDED,
    RUNS,
    SAVED,
    STARTED,
    WAITS,
    T,
    append,
    carry,
    child_in,
    journalled,
    outcome,
)

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize(("program", "code", "how"), [
    (("true",), 0, Outcome.SUCCEEDED),
    ((sys.executable, "-c", "labels = {}; labels['missing']"), 1, Outcome.FAILED),
    (("no-such-program",), 1, Outcome.FAILED),
])  # fmt: skip
def test_a_fresh_run_ends_with_its_code(
    tmp_path: Path, program: tuple[str, ...], code: int, how: Outcome
) -> None:
    run = RunPaths(tmp_path / "run-1")
    got, state = carry(run, job_of(tmp_path, *program))
    assert (got, outcome(state)) == (code, (how, 1))
    kinds = [type(fact) for fact in facts_of(run)]
    assert kinds[0] is ev.RunStarted
    assert kinds[-2:] == [ev.RunEnded, ev.KeeperLeft]
    assert len([kind for kind in kinds if kind is ev.Diagnosed]) >= 1
    index = ArrivalReader(run.node().attempt(1))
    assert index.refresh() == (program[0] == sys.executable), "one of them writes"
    index.close()


@pytest.mark.fault("processes", "two keepers are started on one run", "the second one quits at once")
@pytest.mark.fault(
    "processes", "keeper.lock is removed and a second keeper starts", "refused by the journal's own lock"
)
def test_only_one_keeper_has_a_run(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "run-1")
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)
    with pytest.raises(LockTaken):
        Keeper(run, job_of(tmp_path), env=os.environ)
    before = run.node().journal.read_bytes()
    assert before.count(b"run_started") == 1
    run.node().lock.unlink()
    with pytest.raises(BlockingIOError, match="another process writes this journal"):
        Keeper(run, job_of(tmp_path), env=os.environ)
    assert run.node().journal.read_bytes() == before
    keeper.close()


@pytest.mark.parametrize(("decision", "code", "how"), [
    (None, 1, Outcome.FAILED),
    (Decision(DecisionKind.HOLD, "no"), 1, Outcome.FAILED),
    (Decision(DecisionKind.HOLD, "no", exit_code=4), 4, Outcome.GAVE_UP),
])  # fmt: skip
def test_a_held_run_is_not_held_for_ever(
    tmp_path: Path, decision: Decision | None, code: int, how: Outcome
) -> None:
    decided = [ev.Decided(t=T, attempt=1, decision=decision)] if decision else []
    held = ev.Held(t=T, attempt=1, reason="no", until=T)
    run = run_in(tmp_path, STARTED, INTENDED, RUNS, *WAITS[:2], *decided, held)
    got, state = carry(run, job_of(tmp_path, interactive=True))
    assert (got, outcome(state)) == (code, (how, 1))


OVER: dict[DecisionKind, list[tuple[int | None, Outcome, int]]] = {
    DecisionKind.SUCCEED: [(None, Outcome.SUCCEEDED, 0)],
    DecisionKind.FAIL: [(None, Outcome.FAILED, 1), (93, Outcome.FAILED, 93), (6, Outcome.LOST, 6)],
    DecisionKind.GIVE_UP: [(None, Outcome.GAVE_UP, 4), (7, Outcome.GAVE_UP, 7)],
    DecisionKind.STOP: [(None, Outcome.STOPPED, 5), (7, Outcome.STOPPED, 7)],
    DecisionKind.REQUEUE: [(75, Outcome.STOPPED, 75)],
}


@pytest.mark.parametrize("kind", OVER, ids=str)
def test_a_decision_ends_the_run_with_its_code_and_reason(tmp_path: Path, kind: DecisionKind) -> None:
    for number, (exit_code, how, code) in enumerate(OVER[kind]):
        decision = Decision(kind, "so it is", exit_code=exit_code)
        decided = ev.Decided(t=T, attempt=1, decision=decision)
        run = run_in(tmp_path / str(number), STARTED, INTENDED, RUNS, *WAITS[:2], decided)
        _, state = carry(run, job_of(tmp_path))
        assert state.condition == st.Finished(outcome=how, exit_code=code, reason="so it is")


def test_a_restart_waits_as_long_as_was_decided_and_a_hold_as_long_as_the_job_says(tmp_path: Path) -> None:
    for kind in (DecisionKind.RESTART, DecisionKind.HOLD):
        decision = Decision(kind, "so it is", delay_s=30.0, change=SpecChange(), exit_code=7)
        decided = ev.Decided(t=T, attempt=1, decision=decision)
        run = run_in(tmp_path / kind, STARTED, INTENDED, RUNS, *WAITS[:2], decided)
        keeper = Keeper(run, job_of(tmp_path, interactive=True), env=os.environ)
        try:
            keeper._act()
            match keeper.state.condition:
                case st.Backoff(until=until, delay_s=delay_s):
                    assert (kind, delay_s) == (DecisionKind.RESTART, 30.0)
                    assert until - time.time() == pytest.approx(30.0, abs=5.0)
                case st.HeldOpen(reason="so it is", until=float(until)):
                    assert kind is DecisionKind.HOLD
                    assert until - time.time() == pytest.approx(50.0, abs=5.0)
                case other:
                    pytest.fail(f"{other}")
        finally:
            keeper.close()


def test_a_person_restarts_with_changes_and_need_not_wait(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED, RUNS, *WAITS)
    run.control.mkdir()
    code = "import os, sys; print(sys.argv, os.environ['A'])"
    args = control.RequestArgs(argv=("-c", code, "--lr", "1"), env={"A": "b"})
    control.send(run.control, RequestKind.RESTART_WITH, args=args)
    got, state = carry(run, job_of(tmp_path, sys.executable))
    assert (got, outcome(state)) == (0, (Outcome.SUCCEEDED, 2))
    first = state.attempts[0]
    decision, who = not_none(first.decision), first.decided_by
    assert who not in {"", "policy"}
    assert (decision.kind, decision.reason) == (DecisionKind.RESTART, f"{who} asked for it")
    assert run.node().attempt(2).agent_log.read_text() == "['-c', '--lr', '1'] b\n"


STOPPED = ev.StopIntended(t=T, attempt=1, why=ev.StopWhy.REQUEST, by="kim", grace_s=1.0)
NO_CAUSE = "the command ended with exit code 1, and why cannot be read: "
GONE: dict[str, tuple[list[ev.Event], tuple[Outcome, int, str]]] = {
    "before the first launch": ([], (Outcome.FAILED, 1, "")),
    "after it ended well": (
        [replace_fields(WAITS[0], exit_code=0)],
        (Outcome.SUCCEEDED, 0, "the command ended with exit code 0; "),
    ),
    "after a stop": ([STOPPED, WAITS[0]], (Outcome.STOPPED, 5, "stopped by kim; ")),
    "after a stop by policy": (
        [replace_fields(STOPPED, why=ev.StopWhy.HANG), WAITS[0]],
        (Outcome.FAILED, 1, NO_CAUSE),
    ),
    "after an unknown end": (
        [replace_fields(WAITS[0], exit_code=None)],
        (Outcome.LOST, 6, "how the command ended is not known: "),
    ),
    "before a restart": ([*WAITS], (Outcome.FAILED, 1, NO_CAUSE)),
}


@pytest.mark.parametrize("when", GONE)
def test_a_run_whose_folder_is_gone_ends_with_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(loop, "AGAIN_S", 0.0)
    facts, (how, code, reason) = GONE[when]
    run = run_in(tmp_path, STARTED, *([INTENDED, RUNS] if facts else []), *facts)
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)
    try:
        run.root.rename(tmp_path / "away")
        assert keeper.run_to_end() == code
    finally:
        keeper.close()
    where = f"moved to {tmp_path / 'away' / 'nodes' / '0'}"
    assert keeper.astray == where
    why = f"{reason}the run directory was {where}"
    assert keeper.state.condition == st.Finished(outcome=how, exit_code=code, reason=why)


def held_run(tmp_path: Path, failure: FailureClass, for_s: float) -> RunPaths:
    """A run that waits for a person for so long."""
    failed = ev.Diagnosed(t=T, attempt=1, verdict=verdict_of(failure))
    held = ev.Held(t=time.time(), attempt=1, reason="no", until=time.time() + for_s)
    return run_in(tmp_path, STARTED, INTENDED, RUNS, WAITS[0], failed, held)


@pytest.mark.fault(
    "recovery",
    "an unwatched usage, import or code error",
    "the keeper ends instead of waiting for a day",
)
@pytest.mark.parametrize(
    ("failure", "why"),
    [(FailureClass.CODE_ERROR, "nobody watched"), (FailureClass.CUDA_OOM, "nobody answered")],
)
def test_a_run_that_only_an_edit_helps_is_not_held_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: FailureClass, why: str
) -> None:
    monkeypatch.setattr(loop, "UNWATCHED_S", 0.3)
    _, state = carry(held_run(tmp_path, failure, 1.5), job_of(tmp_path, interactive=True))
    assert isinstance(state.condition, st.Finished)
    assert (state.condition.outcome, why in state.condition.reason) == (Outcome.FAILED, True)


def test_it_is_held_while_a_screen_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "UNWATCHED_S", 1.5)
    monkeypatch.setattr(control, "REFRESH_S", 0.1)
    run = held_run(tmp_path, FailureClass.CODE_ERROR, 60.0)
    run.control.mkdir()
    screen, began, act = control.presence_of(run.control), time.monotonic(), Keeper._act

    def act_and_look(keeper: Keeper, *, hurried: bool = False) -> None:
        if (now := time.monotonic()) - began < 2.5:
            screen.beat(now)
        else:
            screen.remove()
        act(keeper, hurried=hurried)

    monkeypatch.setattr(Keeper, "_act", act_and_look)
    carry(run, job_of(tmp_path, interactive=True))
    assert time.monotonic() - began >= 2.5, "it ended while somebody watched"


@pytest.mark.parametrize(("number", "saved", "slurm", "code"), [
    (signal.SIGTERM, True, False, 5),
    (signal.SIGTERM, True, True, 75),
    (signal.SIGTERM, False, True, 5),
    (signal.SIGUSR1, True, False, 75),
    (signal.SIGUSR1, False, False, 5),
    (signal.SIGINT, True, True, 130),
])  # fmt: skip
def test_a_signal_between_attempts_ends_the_run_with_the_right_code(
    tmp_path: Path, number: signal.Signals, saved: bool, slurm: bool, code: int
) -> None:
    run = run_in(tmp_path, STARTED, INTENDED, RUNS, *([SAVED] if saved else []), *WAITS)
    env = {"SLURM_JOB_ID": "7"} if slurm else {}
    got, state = carry(run, job_of(tmp_path), signals=(number,), env=env)
    assert (got, outcome(state)) == (code, (Outcome.STOPPED, 1))


@pytest.mark.parametrize(("number", "times", "code"), [(signal.SIGTERM, 1, 5), (signal.SIGINT, 2, 130)])
def test_a_signal_to_a_live_attempt_ends_it(
    tmp_path: Path, number: signal.Signals, times: int, code: int
) -> None:
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, SLEEP)
    append(run, journalled(child))
    got, state = carry(run, job_of(tmp_path), signals=(number,) * times)
    assert (got, outcome(state)) == (code, (Outcome.STOPPED, 1))
    steps = [f.step for f in facts_of(run) if isinstance(f, ev.StopStepTaken)]
    assert steps[0] is (ev.StopStep.SIGKILL if times == 2 else ev.StopStep.SIGTERM)
    assert wait_until(lambda: child.poll() is not None, 5)


@pytest.mark.fault("recovery", "a stop arrives as the job ends with 0", "it succeeded")
def test_a_stop_that_comes_as_the_job_has_just_finished_does_not_spoil_it(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED, RUNS, ev.AttemptEnded(t=T, attempt=1, exit_code=0))
    run.control.mkdir()
    request = control.send(run.control, RequestKind.STOP)
    code, state = carry(run, job_of(tmp_path))
    assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 1))
    assert state.answered == {request: "done"}


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        (RequestKind.START_NOW, (0, (Outcome.SUCCEEDED, 2))),
        (RequestKind.RESTART, (0, (Outcome.SUCCEEDED, 2))),
        (RequestKind.STOP, (5, (Outcome.STOPPED, 1))),
    ],
)
def test_a_person_need_not_wait_for_what_is_not_shown(
    tmp_path: Path, kind: RequestKind, ends: tuple[int, tuple[Outcome, int]]
) -> None:
    """A launch that waits for a taken port continues waiting in a keeper that adopts it, until a person decides."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        asks = replace(AGAIN, show_first=(Precondition.PORT,), wait_s=1e9)
        run = run_in(
            tmp_path, STARTED, INTENDED, RUNS, *WAITS[:2], ev.Decided(t=T, attempt=1, decision=asks),
            ev.BackoffStarted(t=T, attempt=1, until=T, delay_s=0.0),
        )  # fmt: skip
        run.control.mkdir()
        record = job_of(tmp_path, interactive=True, master_port=server.getsockname()[1])
        keeper = Keeper(run, record, env=os.environ)
        try:
            for _ in range(3):
                keeper._act()
            assert isinstance(keeper.state.condition, st.Backoff)
            assert keeper.state.waiting is not None
            assert "port" in keeper.state.waiting.text
            control.send(run.control, kind)
            assert (keeper.run_to_end(), outcome(keeper.state)) == ends
        finally:
            keeper.close()


@pytest.mark.fault(
    "journal and disk",
    "stoker's own writes fail on a full disk",
    "events wait in memory; stoker's writes never end the training",
)
def test_a_full_disk_costs_facts_never_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunPaths(tmp_path / "run-1")
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)

    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeper._ledger._journal, "append", full)
    monkeypatch.setattr("supervisor.keeper.planning.launch_plans.write_plan", full)
    try:
        assert keeper.run_to_end() == 0
    finally:
        keeper.close()


FILLS = """
import sys
path = sys.argv[1]
for step in range(1, 30):
    print(f"step {step} loss {5 - step / 10}", flush=True)
try:
    with open(path, "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 10))
except OSError:
    pass
"""


@pytest.mark.fault(
    "journal and disk",
    "the job fills its own run folder's disk and ends",
    "every event is in the journal, the last ones in reserved space",
)
def test_the_facts_of_a_run_that_filled_its_disk_are_all_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        run = RunPaths(disk / "run-1")
        code, state = carry(run, job_of(tmp_path, sys.executable, "-c", FILLS, str(disk / "filler")))
        assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize < 1 << 18, "the disk is full"
        assert (code, outcome(state)) == (0, (Outcome.SUCCEEDED, 1))
        assert b"\n\n" not in run.node().journal.read_bytes()


@pytest.mark.fault(
    "journal and disk", "the disk is full when the job prints its error", "the verdict is disk_full"
)
def test_a_job_whose_last_words_the_full_disk_took_failed_of_that(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        run = RunPaths(disk / "run-1")
        dies = f"{FILLS}print('x' * 100_000, flush=True)"
        code, state = carry(run, job_of(tmp_path, sys.executable, "-c", dies, str(disk / "filler")))
        assert code == 1
        assert state.attempt is not None
        assert state.attempt.verdict is not None
        assert state.attempt.verdict.failure is FailureClass.DISK_FULL


@pytest.mark.fault(
    "journal and disk", "a launch on a full disk", "the verdict is disk_full, and it waits for space"
)
def test_a_launch_on_a_full_disk_is_no_usage_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        run = RunPaths(disk / "run-1")
        keeper = Keeper(run, job_of(tmp_path), env=os.environ)
        fill(disk)
        try:
            while not keeper.state.attempts or keeper.state.attempts[0].verdict is None:
                keeper._act()
        finally:
            keeper.close()
        verdict = keeper.state.attempts[0].verdict
        assert verdict.failure is FailureClass.DISK_FULL, verdict
        assert read_state(run.node().journal) == keeper.state


def test_a_keeper_that_leaves_early_leaves_its_child(tmp_path: Path) -> None:
    run = run_in(tmp_path, STARTED, INTENDED)
    child = child_in(run, SLEEP)
    append(run, journalled(child))
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)
    keeper._act()
    keeper.close("the keeper crashed")
    assert child.poll() is None
    state = read_state(run.node().journal)
    assert isinstance(state.condition, st.Running)
    assert state.keeper_left == "the keeper crashed"
    os.kill(child.pid.pid, signal.SIGKILL)
    assert wait_until(lambda: child.poll() is not None, 5)


def test_what_runs_is_looked_into_and_traced_on_request(tmp_path: Path) -> None:
    """A script's own process is its rank, not a data worker that it started."""
    run = run_in(tmp_path, STARTED, INTENDED)
    worker = tmp_path / "worker"
    code = f"import subprocess; subprocess.Popen(['sleep', '600']); open({str(worker)!r}, 'w'); {SLEEP}"
    child = child_in(run, code)
    append(run, journalled(child))
    assert wait_until(worker.exists, 30)
    keeper = Keeper(run, job_of(tmp_path, "python3", "train.py"), env=os.environ)

    def done(kind: RequestKind) -> str:
        asked = control.send(run.control, kind)

        def act() -> bool:
            keeper._control.look()
            keeper._act()
            return asked in keeper.state.answered

        assert wait_until(act, 60)
        answers = [fact for fact in facts_of(run) if isinstance(fact, ev.RequestDone | ev.RequestRefused)]
        return answers[-1].reason if isinstance(answers[-1], ev.RequestRefused) else answers[-1].detail

    try:
        keeper._act()
        assert done(RequestKind.PROFILE) == ""
        assert run.node().attempt(1).profile_file.exists()
        artifact = done(RequestKind.STACKS)
        (taken,) = (fact for fact in facts_of(run) if isinstance(fact, ev.StacksTaken))
        assert (taken.attempt, taken.artifact) == (1, artifact)
        assert f"== rank 0, pid {child.pid.pid}, by " in (run.root / artifact).read_text()
        assert done(RequestKind.STOP_NOW) == ""
        keeper._act()
        assert done(RequestKind.PROFILE) == done(RequestKind.STACKS) == "nothing runs"
        assert keeper.run_to_end() == 5
    finally:
        keeper.close()
        send_signal(child.pid)
        assert wait_until(lambda: child.poll() is not None, 10)
        child.release()


ENDS_WITH_0_AND_A_FAILURE = """
import subprocess, sys
print("step 1 loss 2.5", flush=True)
print("torch.distributed.DistBackendError: NCCL error: unhandled system error", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(4)"])
"""


@pytest.mark.fault(
    "processes",
    "a stop just after the command ended with 0, before its end is known",
    "it is not lost: the run ends, and nothing is launched again",
)
def test_a_stop_between_exit_0_and_the_attempts_end_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "SETTLE_S", 2.0)  # so long what it left may end by itself: the window
    run = RunPaths(tmp_path / "run-1")
    job = job_of(tmp_path, sys.executable, "-c", ENDS_WITH_0_AND_A_FAILURE, interactive=True)
    keeper = Keeper(run, job, env=os.environ)

    def ask() -> None:
        assert wait_until((run.node().attempt(1).root / "exit").exists, 30)
        control.send(run.control, RequestKind.STOP)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        code = keeper.run_to_end()
    finally:
        asking.join()
        keeper.close()
    assert outcome(keeper.state) == (Outcome.STOPPED, 1)
    assert code == EXIT_STOPPED


LAYS_LINKS = """
import os, pathlib, sys
node, out = pathlib.Path(os.environ["STOKER_RUN_DIR"], "nodes", "0"), pathlib.Path(sys.argv[1])
for name in ("2/telemetry", "4/agent.log", "5/pid.part", "6/plan.json", "6/exit.part"):
    path = node / "attempts" / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(out if name == "2/telemetry" else out / "thesis.txt")
for name in ("attempts/3", "series"):
    (node / name).is_dir() and (node / name).rename(out.parent / "away")
    (node / name).symlink_to(out)
for step in range(3):
    print(f"step {step} loss: 1.5", flush=True)
"""
REFUSED = {
    2: "telemetry: a link, which is not followed",
    3: "3: a link, which is not followed",
    4: "agent.log: Too many levels of symbolic links",
    5: "pid: Too many levels of symbolic links",
}


def test_nothing_is_written_through_a_link_that_the_job_laid(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    run = RunPaths(tmp_path / "run-1")
    got, state = carry(run, job_of(tmp_path, sys.executable, "-c", LAYS_LINKS, str(out)))
    assert (got, outcome(state)) == (0, (Outcome.SUCCEEDED, 1))
    for number, why in REFUSED.items():
        with pytest.raises(SpawnError, match=why):
            spawn(plan_of(("true",), tmp_path), run.node().attempt(number), os.environ)
    plan = plan_of((sys.executable, "-c", ""), tmp_path)
    write_plan(run.node().attempt(6), plan)
    child = spawn(plan, run.node().attempt(6), os.environ)
    assert wait_until(lambda: not is_alive(child.pid) and not is_alive(child.launcher), 20)
    with pytest.raises(OSError, match="a link, which is not followed"):
        write_plan(run.node().attempt(3), plan)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
    assert (out / "thesis.txt").read_text() == "mine"


def test_a_keeper_that_closes_leaves_no_thread_that_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, lock_is_free = threading.Event(), threading.Event()
    made = load_engine(default_cache_dir())

    def slow(_cache: str | None, _own: object) -> object:
        assert go.wait(30)
        return made

    monkeypatch.setattr(engine, "load_engine", slow)
    run = RunPaths(tmp_path / "run-1")
    keeper = Keeper(run, job_of(tmp_path), env=os.environ)
    keeper._engine.begin()  # as once something runs

    def finish() -> None:
        if wait_until(lambda: not keeper_is_alive(run.node().lock), 20):
            lock_is_free.set()
        go.set()

    other = threading.Thread(target=finish)
    other.start()
    keeper.close()
    loading = [thread.name for thread in threading.enumerate() if thread.name == "stoker-engine"]
    other.join()
    assert loading == []
    assert lock_is_free.is_set(), "nobody else waits for it"
