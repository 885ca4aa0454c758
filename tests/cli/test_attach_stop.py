"""`stoker attach` and `stoker stop` on run directories written by hand."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import attach, observe_target, open_app
from supervisor.cli.main import main
from supervisor.keeper.process import detach, takeover
from supervisor.keeper.process.child import own_identity
from supervisor.run import events as ev
from supervisor.run.control import pending
from supervisor.run.index import register
from supervisor.run.journal import read_state
from supervisor.run.ownership import KeeperLock, Offer
from supervisor.run.paths import RunPaths
from supervisor.views.model.cause_context import read_context
from tests.cli.conftest import Answer, Call
from tests.conftest import wait_until
from tests.keeper.fakes import job_of, own_run_in, run_in
from tests.keeper.runs import append

T = 1_795_000_000.0
STARTED = ev.RunStarted(t=T, run_id="run-1", name="gpt", mode="launched", host=socket.gethostname())
LAUNCHED = ev.LaunchIntended(t=T, attempt=1, argv=(), reason="first launch")
RUNS = ev.AttemptStarted(t=T, attempt=1, pid=99_999_999, start_time=1.0)
SURVIVES = ev.StopStepTaken(t=T, attempt=1, step=ev.StopStep.SURVIVORS, pids=(4711,))
LEFT = ev.ProcessesLeft(
    t=T, attempt=1, why=ev.LeftWhy.UNKNOWN, processes=(ev.LeftProcess(pid=4712, command="rsync"),)
)
OVER = ev.RunEnded(t=T, outcome=ev.Outcome.GAVE_UP, exit_code=4, reason="too often")


def test_a_finished_run_is_not_adopted(tmp_path: Path, call: Call) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, LAUNCHED, OVER)
    refused = "run-1: not adopted: the run is over (gave up): `stoker continue run-1` starts the next attempt"
    assert call("attach --adopt", run.root) == Answer(3, "", f"stoker attach: {refused}\n")


def test_a_run_of_another_host_is_shown_and_never_adopted(tmp_path: Path, call: Call) -> None:
    elsewhere = ev.RunStarted(t=T, run_id="run-1", name="gpt", mode="launched", host="another-box")
    run = own_run_in(tmp_path, job_of(tmp_path), elsewhere, LAUNCHED, RUNS)
    before = run.node().journal.read_bytes()
    code, _, err = call("attach --adopt", run.root)
    assert (code, "another-box" in err) == (3, True)
    assert "another-box" in call("attach --no-ui", run.root).err
    assert run.node().journal.read_bytes() == before


def test_adopting_what_is_no_launched_run_or_has_a_keeper(tmp_path: Path, call: Call) -> None:
    run = run_in(tmp_path / "x", STARTED, LAUNCHED, RUNS)
    code, _, err = call("attach --adopt", run.root)
    assert (code, err.count("\n"), "run.json: No such file" in err) == (3, 1, True)
    assert not run.node().log.exists(), "no keeper was started"
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, LAUNCHED, RUNS)
    lock = KeeperLock(run.node().lock, start_time=own_identity().start_time)
    try:
        code, out, _ = call("attach --adopt", run.root)
    finally:
        lock.release()
    assert (code, "it has a keeper" in out) == (0, True)


def test_the_screen_opens_on_a_terminal_alone(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, LAUNCHED, OVER)
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(open_app, "show", lambda run, **named: opened.append(named) or 7)  # type: ignore[func-returns-value]
    monkeypatch.setattr(attach, "has_terminal", lambda: True)
    assert call("attach --read-only --theme light", run.root) == Answer(7, "", "")
    assert call("attach", run.root).code == 7
    assert call("attach --no-ui", run.root).code == 4
    assert [named["read_only"] for named in opened] == [True, False]
    assert (opened[0]["appearance"].theme, opened[0]["journal"].state.run_id) == ("light", "run-1")


def raises(error: BaseException) -> Callable[[object], None]:
    def act(_: object) -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("meanwhile", "code", "said"),
    [
        (raises(KeyboardInterrupt()), 0, "left; training continues. Come back with: stoker attach run-1\n"),
        (raises(BrokenPipeError()), 141, ""),
        (lambda run: shutil.rmtree(run.root), 6, "stoker attach: {}: the run directory was deleted or moved: how the run continues is not seen here\n"),
        (
            lambda _: None, 6,
            "stoker attach: its supervisor process is gone: `stoker attach --adopt run-1` takes over what lives of it, `stoker continue run-1` starts the next attempt\n",
        ),
        (lambda run: append(run, OVER), 4, ""),
    ],
)  # fmt: skip
def test_lines_come_until_the_run_ends_or_nobody_reads(
    tmp_path: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[RunPaths], None],
    code: int,
    said: str,
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), STARTED, LAUNCHED, RUNS)
    lock = KeeperLock(run.node().lock, start_time=own_identity().start_time)
    looks = [lambda _: None, meanwhile]

    def wait(_: float) -> None:
        looks.pop(0)(run)
        if not looks:
            lock.release()

    monkeypatch.setattr(attach, "wait_while_read", wait)
    try:
        found = call("attach --no-ui", run.root)
    finally:
        lock.release()
    assert (found.code, found.err) == (code, said.format(run.root))
    assert "deleted" in said or "first launch" in found.out
    assert ("gave up: too often" in found.out) == (code == 4)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, "run-1: adopted: it is watched; it is restarted\n"),
        (takeover.NotAdopted(["it is over", "it is ours"]), 3, "stoker attach: run-1: not adopted: it is over\nstoker attach: run-1: not adopted: it is ours\n"),
        (detach.KeeperDidNotStart("see keeper.log"), 1, "stoker attach: run-1: not adopted: no new keeper could start: see keeper.log\n"),
        (PermissionError(13, "Permission denied"), 1, "stoker attach: run-1: not adopted: no new keeper could start: [Errno 13] Permission denied\n"),
    ],
)  # fmt: skip
def test_adopting_says_what_it_does(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, error: Exception | None, code: int, said: str
) -> None:
    record = job_of(tmp_path)
    run = own_run_in(tmp_path, record, STARTED, LAUNCHED, RUNS)
    offer = Offer((), ("its clock was set",), ("it is watched", "it is restarted"))

    def adopt(*_: object, **named: object) -> None:
        assert named == {"entry": "supervisor.cli.detached"}
        if error is not None:
            raise error

    monkeypatch.setattr(takeover, "examine_adoption", lambda _: (offer, record))
    monkeypatch.setattr(takeover, "adopt", adopt)
    assert call("attach --adopt", run.root) == Answer(code, "", f"stoker attach: its clock was set\n{said}")


def test_stop_says_what_is_so(tmp_path: Path, call: Call) -> None:
    run = run_in(tmp_path, STARTED, LAUNCHED, RUNS)
    run.control.mkdir()
    code, _, err = call("stop", run.root)
    assert (code, "has no keeper: `stoker attach --adopt run-1`" in err) == (3, True)
    append(run, OVER)
    code, out, _ = call("stop", run.root)
    assert (code, "has ended already" in out) == (0, True)


@pytest.mark.parametrize(("answer", "code", "words"), [
    ("ends", 0, "ended: gave_up"),
    ("ends", 0, "would not end: pids 4711"),
    ("ends", 0, "left alone, not known to be of this run: 4712 rsync"),
    ("refuses", 1, "refused: not now"),
    ("dies", 1, "its keeper ended before"),
    ("waits", 1, "stoker stop --now"),
])  # fmt: skip
def test_stop_waits_for_the_end_a_refusal_or_the_keepers_death(
    tmp_path: Path, call: Call, answer: str, code: int, words: str
) -> None:
    run = run_in(tmp_path, STARTED, LAUNCHED, RUNS)
    run.control.mkdir()
    lock = KeeperLock(run.node().lock, start_time=own_identity().start_time)

    def keeper() -> None:
        assert wait_until(lambda: pending(run.control), 10)
        (request,) = pending(run.control)
        if answer == "ends":
            append(run, SURVIVES, LEFT, OVER)
        if answer == "refuses":
            refused = ev.RequestRefused(
                t=T, request_id=request.id, request="stop", by="kim", reason="not now"
            )
            append(run, refused)
        if answer == "dies":
            lock.release()

    thread = threading.Thread(target=keeper)
    thread.start()
    timeout = "0.5" if answer == "waits" else "20"
    said = call(f"stop --timeout {timeout}", run.root)
    thread.join()
    lock.release()
    assert (said.code, words in said.out + said.err) == (code, True), said


def test_stop_does_not_choose_between_live_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    runs, locks = [], []
    for name, place, called in (
        ("20261121-1412-brave-otter", "runs", "aaa"), ("20261121-1413-able-ant", "runs", "aaa"),
        ("20261121-1411-calm-cat", "other", "aaa"), ("20261121-1414-calm-cow", "other", "bbb"),
    ):  # fmt: skip
        run = run_in(tmp_path / place, STARTED, LAUNCHED, RUNS)
        run = RunPaths(run.root.rename(run.root.with_name(name)))
        run.control.mkdir()
        register(run, called, os.environ)
        runs.append(run)
        locks.append(KeeperLock(run.node().lock, start_time=own_identity().start_time))
    for words, said in ("", "2 live runs under"), ("aaa", "2 live runs are called 'aaa'"):
        code, _, err = call(f"stop {words}")
        head, *listed = err.splitlines()
        assert (code, said in head) == (2, True)
        assert [line.split()[0] for line in listed] == [runs[1].run_id, runs[0].run_id]
    assert not [request for run in runs for request in pending(run.control)]
    locks[1].release()
    for words in ("", "aaa"):
        code, _, err = call(f"stop --timeout 0.1 {words}")
        assert code == 1, "the one that lives, though it is the older"
        assert "brave-otter has not ended" in err
    assert "calm-cow has not ended" in call("stop --timeout 0.1 bbb").err, "a name that no run here has"
    assert [len(pending(run.control)) for run in runs] == [2, 0, 0, 1]
    for lock in locks:
        lock.release()


def observed() -> list[Path]:
    return list(Path(os.environ["XDG_STATE_HOME"]).glob("stoker/observed/*"))


def test_a_log_is_judged_and_nothing_is_kept(tmp_path: Path, call: Call) -> None:
    log = tmp_path / "x.log"
    log.write_text('step 1 loss: 2.0\nTraceback (most recent call last):\n  File "t.py", line 3, in <module>\n'
                   "    labels['missing']\nKeyError: 'missing'\n", encoding="utf-8")  # fmt: skip
    code, out, _ = call("attach --no-ui", log)
    assert (code, "code_error" in out, observed()) == (1, True, [])
    assert call("attach --no-ui --keep", log).code == 1
    assert observed() == []
    (kept,) = Path(os.environ["XDG_STATE_HOME"]).glob("stoker/kept/*")
    assert kept.name in call("runs --all").out
    attempt = read_state(RunPaths(kept).node().journal).attempt
    assert attempt is not None
    assert attempt.verdict is not None
    assert attempt.verdict.rank is None, "the log mentions none"


def test_who_closes_the_output_of_attach_ends_it(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe_target, "wait_while_read", raises(BrokenPipeError()))
    with (tmp_path / "x.log").open("w"):  # somebody writes it
        assert call("attach --no-ui", tmp_path / "x.log").code == 141
    assert observed() == []


@pytest.mark.parametrize("target", ["logs", "logs/rank1.log"])
def test_a_cause_can_be_looked_up_from_wherever_the_run_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, target: str
) -> None:
    log = tmp_path / "logs" / "rank1.log"
    log.parent.mkdir()
    log.write_text(
        "step 1 loss: 2.0\nTraceback (most recent call last):\nKeyError: 'missing'\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(f"attach --no-ui --keep {target}")
    assert (code, f"cause  {log}:3\n" in out) == (1, True)
    (kept,) = Path(os.environ["XDG_STATE_HOME"]).glob("stoker/kept/*")
    run = RunPaths(kept)
    attempt = read_state(run.node().journal).attempt
    assert attempt is not None
    assert attempt.verdict is not None
    assert attempt.verdict.cause is not None
    monkeypatch.chdir("/")
    assert read_context(run, 1, attempt.verdict.cause).lines[-1] == "KeyError: 'missing'"


def test_what_a_killed_observer_left_is_cleared_away_and_a_live_one_is_not(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("step 1\n", encoding="utf-8")
    os.utime(log, (T, T))  # nobody waits for more of it
    place = Path(os.environ["XDG_STATE_HOME"]) / "stoker" / "observed"
    dead, live, newborn = (RunPaths(place / name) for name in ("dead", "live", "newborn"))
    for run in (dead, live, newborn):
        run.node().root.mkdir(parents=True)
    lock = KeeperLock(live.node().lock, start_time=1.0)
    for run in (dead, live):
        os.utime(run.root, (T - 1e6, T - 1e6))
    main(["attach", "--no-ui", str(log)])
    lock.release()
    assert sorted(path.name for path in observed()) == ["live", "newborn"]


def test_lists_survive_runs_that_are_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_in(tmp_path / "runs", STARTED, LAUNCHED, OVER)
    broken = RunPaths(tmp_path / "runs" / "20260101-0000-bad")
    broken.node().root.mkdir(parents=True)
    broken.node().journal.write_bytes(b"\xff\xfe no journal\n{half")
    code, out, _ = call("runs")
    assert (code, run.run_id in out, "20260101-0000-bad" in out) == (0, True, True)
    assert call("export --chart run-1").code == 1


def test_digits_are_a_part_of_a_runs_id_where_no_process_has_that_pid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_in(tmp_path / "runs", STARTED, LAUNCHED, OVER)
    pid = os.getpid()
    none = run.root.rename(run.root.with_name("99999999-quick-finch"))
    assert call("attach --no-ui 99999999").code == 4, "the exit code of the run"
    none.rename(run.root.with_name(f"{pid}-brave-otter"))
    monkeypatch.setattr("supervisor.cli.observe_target.observe", lambda target, *_: int(target) % 200 + 3)
    assert call("attach --no-ui", pid).code == pid % 200 + 3
    code, _, err = call("attach --no-ui 4194305")
    assert (code, "no process with this pid" in err, "no run named" in err) == (2, True, True)
