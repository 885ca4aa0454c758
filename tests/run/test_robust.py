"""The run directory under trouble: full disks, brief looks at the lock, logs cleared away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.cli.common import user_settings
from supervisor.run import events as ev
from supervisor.run.control import pending, send
from supervisor.run.events import RequestKind
from supervisor.run.index import RunNotFound, find_run, runs_dir, state_home
from supervisor.run.journal import JournalReader, JournalWriter
from supervisor.run.ownership import KeeperLock, keeper_is_alive, read_holder
from supervisor.run.paths import AttemptPaths


def note(text: str) -> ev.NoteAdded:
    return ev.NoteAdded(t=1.0, text=text, by="kim")


@pytest.mark.fault(
    "journal and disk",
    "a full disk tears a line",
    "it costs itself alone; what follows is whole",
)
def test_a_line_torn_by_a_full_disk_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path / "j")
    write = os.write
    room = [20]

    def full(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        part = bytes(data)[: room[0]]
        room[0] -= len(part)
        return write(fd, part)

    monkeypatch.setattr(os, "write", full)
    for text in ("one", "two"):
        with pytest.raises(OSError, match="space"):
            writer.append(note(text))
    monkeypatch.undo()
    writer.append(note("three"))
    writer.append(note("four"))
    writer.close()
    reader = JournalReader(tmp_path / "j")
    assert [f.text for f in reader.read() if isinstance(f, ev.NoteAdded)] == ["three", "four"]
    assert reader.skipped == 0, "the half of a line was taken back"


@pytest.mark.fault("journal and disk", "the disk is full when a keeper starts", "it starts")
def test_a_full_disk_does_not_keep_a_keeper_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = KeeperLock(tmp_path / "keeper.lock", start_time=1.0)
    assert keeper_is_alive(tmp_path / "keeper.lock")
    assert read_holder(tmp_path / "keeper.lock") is None
    lock.release()


@pytest.mark.fault("logs and load", "logs are cleared away while they are shown", "no error")
def test_logs_that_are_cleared_away_while_looked_at_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "torchrun" / "x_1" / "attempt_0" / "0"
    tree.mkdir(parents=True)
    paths = AttemptPaths(tmp_path)
    assert list(paths.rank_folders()) == [0]

    def gone(_self: Path) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "iterdir", gone)
    assert paths.rank_folders() == {}


def test_requests_are_answered_in_the_order_they_were_made(tmp_path: Path) -> None:
    made = [send(tmp_path, RequestKind.STACKS) for _ in range(50)]
    assert [request.id for request in pending(tmp_path)] == made


def test_a_home_that_is_not_known_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert state_home({"HOME": "/h"}) == Path("/h/.local/state/stoker")
    assert state_home({"XDG_STATE_HOME": "/s"}) == Path("/s/stoker")
    assert state_home({}).name == "stoker"
    for relative in ("rel/state", ".", "~/state"):  # the XDG rules: ignored
        assert state_home({"HOME": "/h", "XDG_STATE_HOME": relative}) == Path("/h/.local/state/stoker")
        assert user_settings({"HOME": "/h", "XDG_CONFIG_HOME": relative}) == Path(
            "/h/.config/stoker/config.toml"
        )
    with pytest.raises(RunNotFound, match="no run named"):
        find_run("~no-such-user", runs_dir(None, {}), {"HOME": str(tmp_path)})
