"""Checkpoints: whole or not at all, whatever the moment of death; nothing in them is executed."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer import checkpoint
from trainer.checkpoint import CheckpointError

STATE = {"model": {"w": torch.arange(64.0)}}


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


def test_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 40, {"samples_seen": 7}, STATE)
    loaded = checkpoint.load(path)
    assert (loaded.meta["step"], loaded.meta["samples_seen"]) == (40, 7)
    assert torch.equal(loaded.state["model"]["w"], STATE["model"]["w"])
    assert checkpoint.newest(tmp_path) == (path, [])


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("at_call", range(8))
@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step again"])
def test_death_at_any_call_leaves_a_whole_checkpoint(
    function: str, at_call: int, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, 10, {"mark": "old"}, STATE)
    calls = 0
    real: Callable[..., Any] = getattr(os, function)

    def dying(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > at_call:
            raise Killed
        return real(*args)

    monkeypatch.setattr(os, function, dying)
    finished = True
    try:
        checkpoint.save(tmp_path, 10 if again else 20, {"mark": "new"}, STATE)
    except Killed:
        finished = False
    monkeypatch.undo()
    path, passed_over = checkpoint.newest(tmp_path)
    assert path is not None
    assert passed_over == []
    meta = checkpoint.load(path).meta
    assert meta["mark"] == ("new" if finished else meta["mark"])
    # And the next save is not disturbed by what the dead one left.
    saved = checkpoint.save(tmp_path, 10 if again else 20, {"mark": "third"}, STATE)
    assert checkpoint.newest(tmp_path)[0] == saved
    assert checkpoint.load(saved).meta["mark"] == "third"
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


@pytest.mark.parametrize("name", [checkpoint.STATE, checkpoint.META])
def test_damage_is_found_and_the_older_one_is_taken(name: str, tmp_path: Path) -> None:
    older = checkpoint.save(tmp_path, 10, {}, STATE)
    path = checkpoint.save(tmp_path, 20, {}, STATE)
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (path / name).write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=f"checksum of {name} differs"):
        checkpoint.load(path)
    found, passed_over = checkpoint.newest(tmp_path)
    assert found == older
    assert len(passed_over) == 1
    (path / name).write_bytes(bytes(data[:10]))
    with pytest.raises(CheckpointError, match="has 10 bytes"):
        checkpoint.verify(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        checkpoint.verify(path)


def test_what_was_never_committed_is_no_checkpoint(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 10, {}, STATE)
    (path / checkpoint.MARKER).unlink()
    assert checkpoint.newest(tmp_path) == (None, [])
    with pytest.raises(CheckpointError, match="never committed"):
        checkpoint.load(path)
    assert checkpoint.newest(tmp_path / "nowhere") == (None, [])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "files": {"a": 3}}', '{"format": 9, "files": {}}']
)
def test_a_marker_that_is_no_marker(text: str, tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 10, {}, STATE)
    (path / checkpoint.MARKER).write_text(text)
    with pytest.raises(CheckpointError):
        checkpoint.verify(path)


def recommit(path: Path) -> None:
    """Marks what lies there now as committed: an attacker can."""
    names = (checkpoint.META, checkpoint.STATE)
    files = {name: ((path / name).stat().st_size, checkpoint._checksum(path / name)) for name in names}
    checkpoint._commit(path, files)


def test_a_hostile_checkpoint_is_not_executed(tmp_path: Path) -> None:
    canary = tmp_path / "executed"

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(canary),))

    path = checkpoint.save(tmp_path, 10, {}, STATE)
    torch.save({"model": Hostile()}, path / checkpoint.STATE)
    recommit(path)
    with pytest.raises(CheckpointError, match="holds more than tensors"):
        checkpoint.load(path)
    (path / checkpoint.STATE).write_bytes(pickle.dumps(Hostile()))
    recommit(path)
    with pytest.raises(CheckpointError):
        checkpoint.load(path)
    assert not canary.exists()


def test_a_marker_may_not_point_outside(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 10, {}, STATE)
    (path / checkpoint.MARKER).write_text('{"format": 1, "files": {"../x": [1, "0"]}}')
    with pytest.raises(CheckpointError, match="outside"):
        checkpoint.verify(path)


def test_pruning_keeps_the_newest_and_what_is_protected(tmp_path: Path) -> None:
    paths = [checkpoint.save(tmp_path, step, {}, STATE) for step in (1, 2, 3, 4)]
    checkpoint.prune(tmp_path, 2, {paths[0]})
    assert checkpoint.committed(tmp_path) == [paths[3], paths[2], paths[0]]
    assert not paths[1].exists()


def test_a_kill_while_an_old_one_is_deleted_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [checkpoint.save(tmp_path, step, {}, STATE) for step in (1, 2)]

    def dying(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dying)
        with pytest.raises(Killed):
            checkpoint.prune(tmp_path, 1, set())
    assert checkpoint.committed(tmp_path) == [paths[1]]
    checkpoint.open_root(tmp_path)
    assert list(tmp_path.iterdir()) == [paths[1]]


def test_a_disk_that_refuses_is_named_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = checkpoint.save(tmp_path, 10, {}, STATE)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match="step_00000020 could not be written: No space left on device"):
        checkpoint.save(tmp_path, 20, {}, STATE)
    assert [p.name for p in tmp_path.iterdir()] == [older.name]
