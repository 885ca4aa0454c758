"""Checkpoints: whole or not at all, whatever the moment of death; nothing in them is executed; ranks of FSDP2 write their rows."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.checkpoint import storage
from trainer.checkpoint.shares import Rows, joined, share_name
from trainer.checkpoint.storage import CheckpointError

STATE = {"model": {"w": torch.arange(64.0)}}


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize("at_call", range(8))
@pytest.mark.parametrize("again", [False, True], ids=["new step", "same step again"])
def test_death_at_any_call_leaves_a_whole_checkpoint(
    function: str, at_call: int, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.save(tmp_path, 10, {"mark": "old"}, STATE)
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
        storage.save(tmp_path, 10 if again else 20, {"mark": "new"}, STATE)
    except Killed:
        finished = False
    monkeypatch.undo()
    path, passed_over = storage.newest(tmp_path)
    assert path is not None
    assert passed_over == []
    meta = storage.load(path).meta
    assert meta["mark"] == ("new" if finished else meta["mark"])
    # And the next save is not disturbed by what the dead one left.
    saved = storage.save(tmp_path, 10 if again else 20, {"mark": "third"}, STATE)
    assert storage.newest(tmp_path)[0] == saved
    assert storage.load(saved).meta["mark"] == "third"
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


@pytest.mark.parametrize("name", [storage.STATE, storage.META])
def test_damage_is_found_and_the_older_one_is_taken(name: str, tmp_path: Path) -> None:
    older = storage.save(tmp_path, 10, {}, STATE)
    path = storage.save(tmp_path, 20, {}, STATE)
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (path / name).write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=f"checksum of {name} differs"):
        storage.load(path)
    found, passed_over = storage.newest(tmp_path)
    assert found == older
    assert len(passed_over) == 1
    (path / name).write_bytes(bytes(data[:10]))
    with pytest.raises(CheckpointError, match="has 10 bytes"):
        storage.verify(path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        storage.verify(path)


def test_what_was_never_committed_is_no_checkpoint(tmp_path: Path) -> None:
    path = storage.save(tmp_path, 10, {}, STATE)
    (path / storage.MARKER).unlink()
    assert storage.newest(tmp_path) == (None, [])
    with pytest.raises(CheckpointError, match="never committed"):
        storage.load(path)
    assert storage.newest(tmp_path / "nowhere") == (None, [])


def test_a_marker_that_is_no_marker(tmp_path: Path) -> None:
    path = storage.save(tmp_path, 10, {}, STATE)
    for text in (
        "",
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 1, "files": {"a": 3}}',
        '{"format": 9, "files": {}}',
    ):
        (path / storage.MARKER).write_text(text)
        with pytest.raises(CheckpointError):
            storage.verify(path)


def recommit(path: Path) -> None:
    """Marks what lies there now as committed: an attacker can."""
    names = (storage.META, storage.STATE)
    files = {name: ((path / name).stat().st_size, storage._checksum(path / name)) for name in names}
    storage._commit(path, files)


def test_a_hostile_checkpoint_is_not_executed(tmp_path: Path) -> None:
    canary = tmp_path / "executed"

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(canary),))

    path = storage.save(tmp_path, 10, {}, STATE)
    torch.save({"model": Hostile()}, path / storage.STATE)
    recommit(path)
    with pytest.raises(CheckpointError, match="holds more than tensors"):
        storage.load(path)
    (path / storage.STATE).write_bytes(pickle.dumps(Hostile()))
    recommit(path)
    with pytest.raises(CheckpointError):
        storage.load(path)
    assert not canary.exists()


def test_a_marker_may_not_point_outside(tmp_path: Path) -> None:
    path = storage.save(tmp_path, 10, {}, STATE)
    (path / storage.MARKER).write_text('{"format": 1, "files": {"../x": [1, "0"]}}')
    with pytest.raises(CheckpointError, match="outside"):
        storage.verify(path)


def test_pruning_keeps_the_newest_and_what_is_protected(tmp_path: Path) -> None:
    paths = [storage.save(tmp_path, step, {}, STATE) for step in (1, 2, 3, 4)]
    storage.prune(tmp_path, 2, {paths[0]})
    assert storage.committed(tmp_path) == [paths[3], paths[2], paths[0]]
    assert not paths[1].exists()


def test_a_kill_while_an_old_one_is_deleted_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [storage.save(tmp_path, step, {}, STATE) for step in (1, 2)]

    def dying(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dying)
        with pytest.raises(Killed):
            storage.prune(tmp_path, 1, set())
    assert storage.committed(tmp_path) == [paths[1]]
    storage.open_root(tmp_path)
    assert list(tmp_path.iterdir()) == [paths[1]]


WHOLE = torch.arange(28.0).view(7, 4)


def shares() -> list[dict[str, Any]]:
    """Of three ranks, as FSDP2 cuts seven rows: 3, 3 and 1; and a counter, which all have."""
    cut = [(0, WHOLE[:3]), (3, WHOLE[3:6]), (6, WHOLE[6:])]
    return [
        {"state": {"model": {"w": part}, "step": torch.tensor(5.0)}, "places": {"/model/w": [first, 7, 4]}}
        for first, part in cut
    ]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_rows_are_taken_out_of_files_that_another_number_of_ranks_wrote(ranks: int) -> None:
    rows = joined(shares(), by_rows=True)["model"]["w"]
    assert isinstance(rows, Rows)
    each = -(-7 // ranks)
    starts = [min(rank * each, 7) for rank in range(ranks)]
    taken = [rows[slice(start, min(start + each, 7))] for start in starts]
    assert torch.equal(torch.cat(taken), WHOLE)
    assert torch.equal(joined(shares(), by_rows=False)["model"]["w"], WHOLE)


def test_a_share_that_is_missing_is_no_checkpoint(tmp_path: Path) -> None:
    def written(names: range) -> Path:
        temporary = storage.begin(tmp_path, len(names))
        files: storage.Files = {}
        for at in names:
            files |= storage.write(temporary, share_name(at), shares()[at])
        return storage.finish(temporary, {}, files)

    path = written(range(3))
    assert torch.equal(storage.load(path).state["model"]["w"], WHOLE)
    assert float(storage.load(path, by_rows=True).state["step"]) == 5
    with pytest.raises(storage.CheckpointError, match="a share is missing"):
        storage.load(written(range(2)))
    (path / share_name(1)).unlink()
    with pytest.raises(storage.CheckpointError, match=r"share-00001\.pt is missing"):
        storage.load(path)
