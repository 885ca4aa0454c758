"""Files of a run: only regular ones are opened, they are their owner's alone, and links are refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from supervisor.run.index import claim, runs_dir, state_home
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import (
    AttemptPaths,
    RunPaths,
    is_run_directory,
    make_private,
    private,
    replace_file,
)
from supervisor.run.regular import open_regular, read_regular, read_text
from supervisor.run.runfile import BadRunFile, KeeperSettings, read_run_file, read_run_stream, write_run_file
from supervisor.run.series import METRICS, SeriesWriter
from tests.keeper.fakes import job_of


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    plain, pipe = tmp_path / "plain", tmp_path / "pipe"
    plain.write_bytes(b"caf\xc3\xa9\xff")
    os.mkfifo(pipe)
    assert read_regular(plain) == b"caf\xc3\xa9\xff"
    assert read_regular(plain, 3) == b"caf"
    assert read_text(plain, errors="replace") == "café\ufffd"
    with pytest.raises(UnicodeDecodeError):
        read_text(plain)
    before = len(os.listdir("/proc/self/fd"))
    for path, number, why in (
        (tmp_path, errno.EISDIR, "Is a directory"),
        (pipe, errno.EINVAL, "no regular file"),
        (Path("/dev/null"), errno.EINVAL, "no regular file"),
        (Path("/proc/self/status"), errno.EINVAL, "no regular file"),
        (tmp_path / "none", errno.ENOENT, "No such file or directory"),
    ):
        with pytest.raises(OSError, match=why) as refused:
            open_regular(path)
        found = refused.value
        assert (found.errno, found.strerror, found.filename) == (number, why, str(path))
    assert len(os.listdir("/proc/self/fd")) == before, "what is refused is closed again"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"schema": 9}', "^x: schema 9 is newer than this stoker: update it$"),
        (b'{"schema": 1}', "^x: not a run file of this version: "),
        (b"{", "^x: not a run file of this version: "),
    ],
)
def test_a_run_file_that_cannot_be_read_says_why(data: bytes, why: str) -> None:
    with pytest.raises(BadRunFile, match=why):
        read_run_stream(data, name="x")


def test_a_run_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(BadRunFile) as refused:
        read_run_file(path)
    assert str(refused.value) == (
        f"{path}: No such file or directory: this folder is not a run that stoker launched"
    )
    plain = job_of(tmp_path)
    shared = msgspec.structs.replace(plain, job=replace(plain.job, node_rank=1, nnodes="2"))
    assert (plain.node, shared.node) == (0, 0), "each node of its own folder is its node 0"
    shared = msgspec.structs.replace(shared, settings=KeeperSettings(shared=True, interactive=True))
    assert shared.node == 1
    for record in (plain, shared):
        write_run_file(path, record)
        assert read_run_file(path) == record
        assert path.read_bytes() == msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    bare = {"run_id": "r", "interpreter": "p", "settings": {}, "created_t": 1.0, "host": "h", "user": "u"}
    data = msgspec.json.encode({**bare, "stoker_version": "1", "job": plain.job})
    found = read_run_stream(data)
    assert found.settings == KeeperSettings(
        interactive=False, checks=True, shared=False, sample_interval_s=1.0
    )
    assert (found.path, found.uid, found.schema, found.git_commit) == (None, None, 1, None)


def test_a_file_is_on_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "f", []
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd).st_size, path.read_bytes())))
    replace_file(path, b"new one")
    assert synced == [(7, b"old")]
    monkeypatch.setattr(os, "fsync", lambda _: private(tmp_path / "none" / "x", os.O_RDONLY))
    with pytest.raises(OSError, match="No such file"):
        replace_file(path, b"newer")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("f", b"new one")]


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/stoker"),
        ({"XDG_STATE_HOME": "s", "HOME": "/h"}, "/h/.local/state/stoker"),
        ({"HOME": "/h"}, "/h/.local/state/stoker"),
        ({}, "~/.local/state/stoker"),
    ],
)
def test_stokers_own_folder_is_where_the_user_keeps_such_things(env: dict[str, str], folder: str) -> None:
    assert state_home(env) == Path(folder).expanduser()
    assert runs_dir("a", {"STOKER_RUNS_DIR": "/b"}) == Path.cwd() / "a"
    assert runs_dir(None, {"STOKER_RUNS_DIR": "/b"}) == Path("/b")
    assert runs_dir(None, {}) == Path.cwd() / "runs"


def test_a_run_has_the_nodes_that_wrote_and_each_the_logs_of_its_ranks(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    assert (run.nodes(), is_run_directory(tmp_path)) == ([], False)
    for name in ("10", "2", "x"):
        (tmp_path / "nodes" / name).mkdir(parents=True)
    assert (run.nodes(), is_run_directory(tmp_path)) == ([2, 10], False)
    run.node(2).journal.touch()
    assert is_run_directory(tmp_path), "node 0 has not begun yet"
    attempt = run.node(2).attempt(1)
    trees = [attempt.torchrun / tree / "attempt_0" for tree in ("b_1", "a_2")]
    for at, (tree, ranks) in enumerate(zip(trees, (("0", "1", "x"), ("1",)), strict=True)):
        for rank in ranks:
            (tree / rank).mkdir(parents=True)
        os.utime(tree, (at + 1, at + 1))
    folders = {0: trees[0] / "0", 1: trees[1] / "1"}
    assert attempt.rank_folders() == folders, "the newest tree wins"
    streams = [folder / name for folder in folders.values() for name in ("stdout.log", "stderr.log")]
    assert attempt.logs() == [attempt.root / "agent.log", *streams]


@pytest.mark.fault("secrets and access", "other users of the machine", "run directories are 0700, files 0600")
def test_a_run_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        run = claim(tmp_path / "runs").root
        for _ in range(2):
            make_private(run / "a" / "b")
        with open(run / "f", "w", opener=private) as file:
            assert not os.get_inheritable(file.fileno())
    finally:
        os.umask(before)
    places = (run, run / "a", run / "a" / "b", run / "f")
    assert [place.stat().st_mode & 0o777 for place in places] == [0o700, 0o700, 0o700, 0o600]
    asked: list[Path] = []
    there = Path.is_dir

    def too_early(self: Path) -> bool:
        """Another process made it right after it was looked for."""
        asked.append(self)
        return asked.count(self) > 1 and there(self)

    monkeypatch.setattr(Path, "is_dir", too_early)
    make_private(run / "a" / "b")


WRITERS: dict[str, Callable[[Path], object]] = {
    "keeper.lock": lambda place: KeeperLock(place, start_time=1.0).release(),
    "events.jsonl": JournalWriter,
    "series": lambda place: SeriesWriter(place).append(METRICS, 1.0, "0", 1, {"loss": 1.0}),
    "series/metrics.jsonl": lambda place: SeriesWriter(place.parent).append(METRICS, 1.0, "0", 1, {}),
    "keeper.log": lambda place: private(place, os.O_WRONLY | os.O_CREAT),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_in_a_run_directory_is_refused(tmp_path: Path, name: str, exists: bool) -> None:
    other, place = tmp_path / "thesis", tmp_path / "run" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(other)
    if exists and name == "series":
        other.mkdir()
    elif exists:
        other.write_text("mine")
    with pytest.raises(OSError, match=r"link|exists"):
        WRITERS[name](place)
    assert other.exists() == exists
    assert other.is_dir() or not exists or other.read_text() == "mine"
    assert not other.is_dir() or not list(other.iterdir())


@pytest.mark.fault("logs and load", "logs are deleted while they are shown", "no error")
def test_logs_that_are_cleared_away_while_looked_at_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchrun" / "x_1" / "attempt_0" / "0").mkdir(parents=True)
    paths = AttemptPaths(tmp_path)
    assert list(paths.rank_folders()) == [0]

    def gone(_self: Path) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "iterdir", gone)
    assert paths.rank_folders() == {}
