"""Who may write to a run: the keeper's lock, whose the directory is, and where it lies."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from supervisor.cli.main import main
from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.ownership import (
    TRIES,
    KeeperLock,
    LockTaken,
    NotRequested,
    ask,
    check_folder,
    has_keeper,
    keeper_is_alive,
    place_of,
    read_holder,
)
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import read_run_file, write_run_file
from tests.conftest import not_none
from tests.keeper.fakes import job_of, own_run_in
from tests.keeper.runs import INTENDED, RUNS, STARTED, T

ENDED = (STARTED, INTENDED, RUNS, ev.AttemptEnded(t=T, attempt=1, exit_code=1))


HOLDS = """
import sys
from pathlib import Path
from supervisor.run.ownership import KeeperLock
lock = KeeperLock(Path(sys.argv[1]), start_time=1.0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.fault("processes", "a keeper dies holding the lock", "the lock is released")
def test_one_keeper_holds_the_lock_and_it_dies_with_it(tmp_path: Path) -> None:
    path = tmp_path / "keeper.lock"
    assert not keeper_is_alive(path), "no file"
    first = KeeperLock(path, start_time=12.5)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keeper_is_alive(path)
    with pytest.raises(LockTaken, match=str(os.getpid())):
        KeeperLock(path, start_time=13.0)
    os.utime(path, (1.0, 1.0))
    first.show_life()
    assert path.stat().st_mtime > 1.0
    first.release()
    first.release()
    assert not keeper_is_alive(path)
    path.write_text('{"pid": 1, "start_time": 1.0, "host": "' + "x" * 300 + '"}\n')
    second = KeeperLock(path, start_time=14.0)
    holder = not_none(read_holder(path))
    assert (holder.pid, holder.start_time) == (os.getpid(), 14.0)
    assert json.loads(path.read_bytes())["pid"] == os.getpid(), "nothing of a longer name is left"
    second.release()
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert keeper_is_alive(path)
        other.kill()
        other.wait()
    assert not keeper_is_alive(path)


def test_a_look_at_the_lock_does_not_keep_a_keeper_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks whether a keeper lives holds the lock for some microseconds."""
    path = tmp_path / "keeper.lock"
    path.touch()
    looking = os.open(path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH | fcntl.LOCK_NB)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == TRIES - 1:
            fcntl.flock(looking, fcntl.LOCK_UN)

    monkeypatch.setattr("supervisor.run.ownership.time.sleep", sleep)
    KeeperLock(path, start_time=1.0).release()
    assert len(slept) == TRIES - 1, "the last try is one too"
    os.close(looking)


def test_what_is_no_lock_file_is_nobodys(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not keeper_is_alive(tmp_path / "pipe")
    held = KeeperLock(tmp_path / "other", start_time=1.0)
    (tmp_path / "link").symlink_to(tmp_path / "other")
    assert not keeper_is_alive(tmp_path / "link"), "another run's"
    held.release()
    (tmp_path / "torn").write_text('{"pid": 1')
    assert read_holder(tmp_path / "torn") is None
    assert read_holder(tmp_path / "none") is None


@pytest.mark.fault("journal and disk", "the disk is full when a keeper starts", "it starts")
def test_a_full_disk_does_not_keep_a_keeper_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = KeeperLock(tmp_path / "keeper.lock", start_time=1.0)
    assert keeper_is_alive(tmp_path / "keeper.lock")
    assert read_holder(tmp_path / "keeper.lock") is None
    lock.release()


@pytest.mark.fault(
    "secrets and access",
    "other users or the group may replace the run's folder",
    "actions are refused, or a warning is shown",
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
    assert r"this folder was moved or copied from /x\x1b]0;pwned\x07\n/y" in err


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
