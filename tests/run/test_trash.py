"""Deleting a run: what may be deleted, how it comes back, and when it is gone for good."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.index import known_runs
from supervisor.run.journal import JournalWriter
from supervisor.run.paths import THROWN, RunPaths
from supervisor.run.trash import KEPT_S, TRASH, StillLives, bring_back, empty, throw_away


def run_in(
    tmp_path: Path, name: str = "brave-otter", *, mode: str = "launched", over: bool = True
) -> RunPaths:
    run = RunPaths(tmp_path / name)
    node = run.node()
    node.root.mkdir(parents=True)
    run.run_json.write_text("{}")
    journal = JournalWriter(node.journal)
    journal.append(ev.RunStarted(t=1.0, run_id=name, name="x", mode=mode, host="h"))
    journal.append(ev.LaunchIntended(t=2.0, attempt=1, reason="first start", argv=("x",)))
    if over:
        journal.append(ev.RunEnded(t=3.0, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="done"))
    journal.close()
    return run


def test_a_deleted_run_comes_back_as_it_was(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    before = sorted(path.relative_to(run.root) for path in run.root.rglob("*"))
    thrown = throw_away(run)
    assert not run.root.exists()
    assert thrown.root == tmp_path / TRASH / run.run_id
    assert (tmp_path / TRASH).stat().st_mode & 0o777 == 0o700
    back = bring_back(thrown)
    assert back.root == run.root
    assert sorted(path.relative_to(run.root) for path in run.root.rglob("*")) == before


def test_a_run_whose_name_is_taken_again_stays_in_the_trash(tmp_path: Path) -> None:
    thrown = throw_away(run_in(tmp_path))
    run_in(tmp_path)
    with pytest.raises(FileExistsError, match="there again"):
        bring_back(thrown)
    assert thrown.root.exists()


def test_a_run_whose_ranks_may_live_is_not_deleted(tmp_path: Path) -> None:
    run = run_in(tmp_path, over=False)
    with pytest.raises(StillLives, match="ranks may live"):
        throw_away(run)
    assert run.root.exists()
    watched = run_in(tmp_path, "watched", mode="observed", over=False)
    throw_away(watched)
    assert not watched.root.exists(), "nothing was launched there"


@pytest.mark.parametrize(("age_s", "kept"), [(KEPT_S - 1, True), (KEPT_S, True), (KEPT_S + 1, False)])
def test_the_trash_keeps_a_week(tmp_path: Path, age_s: float, kept: bool) -> None:
    thrown = throw_away(run_in(tmp_path))
    os.utime(thrown.root / THROWN, (1000.0, 1000.0))
    assert empty(tmp_path, 1000.0 + age_s) == (0 if kept else 1)
    assert thrown.root.exists() is kept


def test_only_run_directories_that_were_thrown_away_are_removed(tmp_path: Path) -> None:
    assert empty(tmp_path, 1e10) == 0, "no trash"
    unmarked = throw_away(run_in(tmp_path, "unmarked"))
    (unmarked.root / THROWN).unlink()
    folder = tmp_path / TRASH / "folder"
    folder.mkdir()
    (folder / THROWN).touch()
    elsewhere = run_in(tmp_path, "elsewhere")
    (elsewhere.root / THROWN).touch()
    (tmp_path / TRASH / "link").symlink_to(elsewhere.root)
    assert empty(tmp_path, 1e12) == 0
    assert unmarked.root.exists()
    assert folder.exists()
    assert elsewhere.root.exists()


def test_a_run_that_comes_back_keeps_its_place_among_those_of_its_minute(tmp_path: Path) -> None:
    older = run_in(tmp_path, "20261121-1412-brave-otter")
    newer = run_in(tmp_path, "20261121-1412-able-ant")
    for second, run in enumerate((older, newer)):
        os.utime(run.run_json, (1000 + second, 1000 + second))
        os.utime(run.root, (1000 + second, 1000 + second))
    bring_back(throw_away(older))
    assert known_runs(tmp_path, {"XDG_STATE_HOME": str(tmp_path)}) == [newer, older]
