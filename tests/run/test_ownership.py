"""Who may write to a run: the keeper's lock, whose the directory is, and where it lies."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from supervisor.cli.main import main
from supervisor.run import events as ev
from supervisor.run.events import RequestKind
from supervisor.run.ownership import (
    ROOT,
    TRIES,
    KeeperLock,
    LockTaken,
    NotRequested,
    Offer,
    ask,
    check_folder,
    has_keeper,
    holder_here,
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
    assert holder_here(path) == holder
    second.release()
    path.write_text(json.dumps({"pid": 1, "start_time": 1.0, "host": "elsewhere"}))
    assert (holder_here(path), not_none(read_holder(path)).host) == (None, "elsewhere")
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
    assert found == Offer((), (f"the group of {tmp_path} may exchange what lies in it",))
    tmp_path.chmod(0o777)
    assert check_folder(run).refusals == (f"everybody may exchange what lies in {tmp_path} (mode 0777)",)
    tmp_path.chmod(0o700)
    if os.geteuid() != ROOT:
        pytest.skip("only root can give a folder away")
    os.chown(tmp_path, 4242, -1)
    assert check_folder(run) == Offer((), (f"uid 4242 owns {tmp_path} and may exchange what lies in it",))


def test_a_run_with_a_part_of_anybody_elses_is_refused(tmp_path: Path) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), *ENDED)
    attempt = run.node().attempt(1).root
    attempt.mkdir(parents=True)
    assert check_folder(run).refusals == ()
    inner = run.node(1).root
    inner.mkdir()
    assert check_folder(run).refusals == (), "another node's keeper may be about to start"
    for place, is_folder in (
        (run.control, True), (run.artifacts, True), (run.node().snapshot, False), (run.node().log, False),
        (run.node().series, True), (run.node().orders, True), (run.node().order, False), (run.node().report, False),
        (inner / "events.jsonl", False), (attempt / "pid", False), (attempt / "exit", False),
        (run.node().probe(1).root, True),
    ):  # fmt: skip
        place.parent.mkdir(exist_ok=True)
        place.touch() if is_folder else place.mkdir()
        assert check_folder(run).refusals == (f"{place} is no {'folder' if is_folder else 'regular file'}",)
        place.unlink() if is_folder else place.rmdir()
        place.symlink_to("/nowhere")
        assert check_folder(run).refusals == (f"{place} is a symbolic link",)
        place.unlink()
        place.mkdir() if is_folder else place.touch()
        place.chmod(0o720)
        assert check_folder(run).refusals == (f"{place} may be written by others than you (mode 0720)",)
        place.chmod(0o700)
        if os.geteuid() == ROOT:
            os.chown(place, 4242, -1)
            assert check_folder(run).refusals == (f"{place} belongs to uid 4242, not to you (uid 0)",)
            os.chown(place, 0, -1)
    assert check_folder(run).refusals == ()
    run.node().journal.unlink()
    assert check_folder(run).refusals == (f"{run.node().journal}: No such file or directory",)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"schema": 2}, "a newer stoker wrote this run (run.json has schema 2): read-only: update stoker to act on it"),
        ({}, "run.json does not say where the run was started (an older stoker wrote it): start again with `stoker run`"),
    ],
)  # fmt: skip
def test_a_run_of_another_version_is_not_acted_on(
    tmp_path: Path, record: dict[str, object], why: str
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path), *ENDED)
    run.run_json.write_text(json.dumps(record))
    assert check_folder(run).refusals == (why,)
    run.run_json.write_text(json.dumps({"path": str(run.root)}))
    with run.node().journal.open("ab") as journal:
        journal.write(b'{"kind":"of_tomorrow","v":3,"t":1.0}\n')
    newer = "a newer stoker wrote this run (its journal has events of version 3): read-only: update stoker to act on it"
    assert check_folder(run).refusals == (newer,)
    with pytest.raises(NotRequested, match=re.escape(newer)):
        ask(run, RequestKind.STOP)


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
