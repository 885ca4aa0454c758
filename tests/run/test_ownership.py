"""Whose a run directory is, where it lies, and what a journal says of a run that was continued."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from supervisor.cli.main import main
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import Outcome, RequestKind
from supervisor.run.fold import replay
from supervisor.run.index import claim, find_run, known_runs, register
from supervisor.run.ownership import (
    KeeperLock,
    NotRequested,
    ask,
    check_folder,
    has_keeper,
    keeper_is_alive,
    place_of,
)
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind
from supervisor.run.runfile import read_run_file, write_run_file
from tests.keeper.fakes import job_of, own_run_in
from tests.keeper.runs import INTENDED, RUNS, STARTED, T

ENDED = (STARTED, INTENDED, RUNS, ev.AttemptEnded(t=T, attempt=1, exit_code=1))


def test_a_folder_as_it_is_left_has_nothing_against_it(tmp_path: Path) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), *ENDED)
    assert check_folder(run).refusals == ()
    assert place_of(run).notice == place_of(run).refusal == ""


@pytest.mark.fault(
    "secrets and access",
    "everybody or the group may exchange the run's folder",
    "acting on it is refused, or warned of",
)
def test_where_others_may_exchange_the_folder(tmp_path: Path) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), *ENDED)
    tmp_path.chmod(0o1777)
    assert check_folder(run).refusals == (), "as in /tmp everybody moves only what is his own"
    tmp_path.chmod(0o775)
    found = check_folder(run)
    assert found.refusals == ()
    assert found.warnings[0] == f"the group of {tmp_path} may exchange what lies in it"
    tmp_path.chmod(0o777)
    assert check_folder(run).refusals == (f"everybody may exchange what lies in {tmp_path} (mode 0777)",)
    tmp_path.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_above_that_is_another_users_is_warned_of(tmp_path: Path) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), *ENDED)
    os.chown(tmp_path, 65_534, 65_534)
    found = check_folder(run)
    assert found.refusals == ()
    assert f"uid 65534 owns {tmp_path} and may exchange what lies in it" in found.warnings


@pytest.mark.fault(
    "secrets and access", "a copied folder's own path holds escape codes", "printed harmlessly"
)
def test_what_a_copy_says_acts_on_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), *ENDED)
    record = msgspec.structs.replace(read_run_file(run.run_json), path="/x\x1b]0;pwned\x07\n/y")
    write_run_file(run.run_json, record)
    assert place_of(run).is_copy
    assert main(["stop", str(run.root)]) == 3
    err = capsys.readouterr().err
    assert err.removesuffix("\n").isprintable()
    assert r"it was moved from /x\x1b]0;pwned\x07\n/y" in err


def test_a_request_needs_a_live_keeper_in_this_very_folder(tmp_path: Path) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), *ENDED)
    run.control.mkdir()
    with pytest.raises(NotRequested, match="the supervisor process is gone"):
        ask(run, RequestKind.STOP)
    lock = KeeperLock(run.node().lock, start_time=1.0)
    try:
        copy = RunPaths(tmp_path / "copy")
        copy.node().root.mkdir(parents=True)
        os.link(run.run_json, copy.run_json)
        os.link(run.node().lock, copy.node().lock)
        assert keeper_is_alive(copy.node().lock), "a hard link is the same lock"
        assert not has_keeper(copy)
        with pytest.raises(NotRequested, match="this folder is a copy: the run itself lies in"):
            ask(copy, RequestKind.STOP)
        assert has_keeper(run)
        assert (run.control / f"{ask(run, RequestKind.STOP)}.json").is_file()
    finally:
        lock.release()


def test_a_folder_of_runs_behind_a_link_has_one_name(tmp_path: Path) -> None:
    """What processes are told of their run, what run.json records and what is found again are the same."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    run = claim(tmp_path / "runs")
    assert run.root.parent == tmp_path / "disk"
    run.node().root.mkdir(parents=True)
    run.node().journal.touch()
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    register(RunPaths(tmp_path / "runs" / run.run_id), "x", env)
    assert known_runs(tmp_path / "runs", env) == [run]
    assert find_run("x", tmp_path / "elsewhere", env) == run


def test_a_run_that_is_continued_is_no_longer_over() -> None:
    over = (*ENDED, ev.RunEnded(t=T, outcome=Outcome.FAILED, exit_code=1, reason="it broke"))
    state = replay(over)
    assert (state.is_over, state.ended_t) == (True, T)
    kept = ev.KeeperStarted(
        t=T, pid=7, start_time=1.0, version="0", adopted=True, host="there", continued_by="kim", boot_id="b"
    )
    decided = ev.Decided(
        t=T, attempt=1, decision=Decision(DecisionKind.RESTART, "kim continued it"), by="kim"
    )
    waits = ev.BackoffStarted(t=T, attempt=1, until=T, delay_s=0.0)
    state = replay((*over, kept, decided, waits))
    assert isinstance(state.condition, st.Backoff)
    assert (state.is_over, state.ended_t, state.host) == (False, None, "there")
    assert any((m.kind, m.values) == (st.MomentKind.CONTINUED, {"by": "kim"}) for m in state.timeline)
    again = ev.LaunchIntended(t=T, attempt=2, argv=(), reason="kim continued it")
    assert replay((*over, again)).ended_t is None, "also of a run that ended before its first attempt"
