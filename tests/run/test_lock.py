"""The keeper's lock: one holder, who it is, and what is seen of it from outside."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from supervisor.run import ownership as module
from supervisor.run.ownership import KeeperLock, LockTaken, keeper_is_alive, read_holder


@pytest.mark.fault("processes", "a keeper dies holding the lock", "the lock dies with it")
def test_one_keeper_holds_it_and_the_next_after_it(tmp_path: Path) -> None:
    path = tmp_path / "keeper.lock"
    assert not keeper_is_alive(path), "no file"
    first = KeeperLock(path, start_time=12.5)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keeper_is_alive(path)
    with pytest.raises(LockTaken, match=str(os.getpid())):
        KeeperLock(path, start_time=13.0)
    first.release()
    first.release()
    assert not keeper_is_alive(path)
    second = KeeperLock(path, start_time=14.0)
    holder = read_holder(path)
    assert holder is not None
    assert (holder.pid, holder.start_time) == (os.getpid(), 14.0)
    second.release()


def test_a_shorter_name_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "keeper.lock"
    path.write_text('{"pid": 1, "start_time": 1.0, "host": "' + "x" * 300 + '"}\n')
    lock = KeeperLock(path, start_time=1.0)
    assert json.loads(path.read_bytes())["pid"] == os.getpid()
    lock.release()


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
        if len(slept) == module.TRIES - 1:
            fcntl.flock(looking, fcntl.LOCK_UN)

    monkeypatch.setattr("supervisor.run.ownership.time.sleep", sleep)
    KeeperLock(path, start_time=1.0).release()
    assert len(slept) == module.TRIES - 1, "the last try is one too"
    os.close(looking)


def test_a_sign_of_life_is_the_files_time(tmp_path: Path) -> None:
    path = tmp_path / "keeper.lock"
    lock = KeeperLock(path, start_time=1.0)
    os.utime(path, (1.0, 1.0))
    lock.show_life()
    assert path.stat().st_mtime > 1.0
    lock.release()


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
