"""Finding runs by path, id, part of an id or name; names and notes in the index; deleting a run and getting it back."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

import pytest

from supervisor.run import events as ev
from supervisor.run.index import (
    ID_STAMP,
    MAX_NAME,
    RunNotFound,
    claim,
    find_run,
    give_name,
    give_note,
    known_runs,
    link_latest,
    listed_names,
    listed_notes,
    named_runs,
    register,
    runs_of,
)
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import THROWN, RunPaths
from supervisor.run.runfile import write_run_file
from supervisor.run.trash import KEPT_S, TRASH, StillLives, bring_back, empty, throw_away
from tests.disks import small_disk
from tests.keeper.fakes import job_of


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}


def make_run(runs: Path, run_id: str = "", t: float = 0.0) -> RunPaths:
    run = RunPaths(runs / run_id) if run_id else claim(runs)
    run.node().root.mkdir(parents=True)
    run.node().journal.touch()
    if t:
        os.utime(run.root, (t, t))
    return run


def refused(text: str | None, runs: Path, env: dict[str, str], why: str, **how: bool) -> None:
    with pytest.raises(RunNotFound, match=why):
        find_run(text, runs, env, **how)


def test_runs_are_found_by_path_id_part_or_not_at_all(tmp_path: Path, env: dict[str, str]) -> None:
    runs = tmp_path / "runs"
    refused(None, runs, env, "stoker run")
    one, two = make_run(runs, t=1e9), make_run(runs, t=1e9 + 1)
    assert find_run(None, runs, env) == two
    for text in (one.run_id, str(one.root), one.run_id[ID_STAMP:]):
        assert find_run(text, runs, env) == one
    refused(one.run_id[:8], runs, env, "2 runs match")
    refused("zzz", runs, env, "no run named")
    refused("~no-such-user", runs, env, "no run named")
    refused(one.run_id[ID_STAMP:].replace("-", "_") + "s", runs, env, f"did you mean {one.run_id}")
    lock = KeeperLock(one.node().lock, start_time=0.0)
    assert find_run(None, runs, env) == one, "the newest live run comes before the newest"
    lock.release()
    register(two, "wide-net", env)
    refused("wide-nte", runs, env, f"did you mean {two.run_id}")
    link_latest(one)
    assert (runs / "latest").resolve() == one.root.resolve()
    assert len(known_runs(runs, env)) == 2, "the link is not a third run"


def test_to_act_on_a_run_its_whole_name_is_given_or_part_of_an_id_here(
    tmp_path: Path, env: dict[str, str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    near = make_run(here, "20261120-1412-brave-otter")
    far = make_run(there, "20261121-1412-calm-bee")
    register(far, "gpt", env)
    for text in ("ott", "brave-otter", near.run_id, str(near.root)):
        assert find_run(text, here, env, acting=True) == near
    for text in ("gpt", far.run_id, str(far.root)):
        assert find_run(text, here, env, acting=True) == far
    how = f"its whole id, its name or its path; of a run under {here} also 3 characters of the id"
    for text, run in (("ot", near), ("calm", far)):
        refused(
            text,
            here,
            env,
            f"^'{text}' is only a part of {run.root}: to act on a run, give {how}$",
            acting=True,
        )
        assert find_run(text, here, env) == run
    assert find_run("calm", there, env, elsewhere=False) == far
    assert find_run(str(far.root), here, env, elsewhere=False) == far, "a path says where"
    lists = "`stoker runs` lists 1$"
    refused("calm-bee", here, env, f"^no run named 'calm-bee' under {here}: {lists}", elsewhere=False)
    none = tmp_path / "none"
    refused(None, none, env, f"^no run under {none}: start one with `stoker run`$", elsewhere=False)
    far.node().journal.unlink()
    refused(None, none, env, f"^no run under {none} and none in the index: start one with `stoker run`$")
    refused(" ", here, env, "^an empty name: say which run, `stoker runs` lists them$")


def test_words_name_one_run_together_or_one_each(tmp_path: Path, env: dict[str, str]) -> None:
    one, two = make_run(tmp_path, "20261120-1412-brave-otter"), make_run(tmp_path, "20261121-1412-calm-bee")
    register(one, "lr 3e-4", env)
    assert runs_of(" lr 3e-4 ", tmp_path, env) == [one]
    assert runs_of("otter bee  otter", tmp_path, env) == [one, two]
    for words in ("nobody", "otter nobody"):
        with pytest.raises(RunNotFound, match=r"^no run named 'nobody'"):
            runs_of(words, tmp_path, env)


def test_a_moved_run_has_the_name_of_its_own_record(tmp_path: Path, env: dict[str, str]) -> None:
    run = make_run(tmp_path, "20261120-1412-brave-otter")
    write_run_file(run.run_json, job_of(tmp_path))
    name = job_of(tmp_path).job.name
    assert named_runs(name, [run], env) == [run]
    register(run, "mine", env)
    assert named_runs(name, [run], env) == []
    assert named_runs("mine", [run], env) == [run]


def test_a_run_begins_only_where_its_first_files_fit(tmp_path: Path) -> None:
    with small_disk(tmp_path / "many", "10m,nr_inodes=30") as many:
        with pytest.raises(
            OSError, match=r"No space left on device \(2\d more files fit: its inodes are used up\)"
        ):
            claim(many)
        assert list(many.iterdir()) == []
    with small_disk(tmp_path / "full", "64k") as full:
        (full / "x").write_bytes(bytes(4096))
        with pytest.raises(OSError, match="No space left"):
            claim(full)
    made = claim(tmp_path / "new" / "runs", 1.8e9)
    stamp = time.strftime("%Y%m%d-%H%M", time.localtime(1.8e9))
    assert re.fullmatch(rf"{stamp}-[a-z]+-[a-z]+", made.run_id)


def test_a_run_is_found_by_its_name_after_ids(tmp_path: Path, env: dict[str, str]) -> None:
    runs = tmp_path / "runs"
    old, new = make_run(runs, t=1e9), make_run(runs, t=1e9 + 1)
    for run in (old, new):
        register(run, "aaa", env)
    assert find_run("aaa", runs, env) == new, "the newest of that name"
    refused("aa", runs, env, "no run named")
    register(old, new.run_id[ID_STAMP:], env)
    assert find_run(new.run_id[ID_STAMP:], runs, env) == new, "a part of an id comes before a name"


def test_a_name_and_a_note_are_given_in_the_index_alone(tmp_path: Path, env: dict[str, str]) -> None:
    runs = tmp_path / "runs"
    run, other = make_run(runs), make_run(runs)
    register(run, "train.py", env)
    before = sorted(run.root.rglob("*"))
    assert give_note(run, " wider\x1b[31m\n batch ", env) == "wider batch"
    assert give_name(run, "  lr 3e-4\x1b[31m\n baseline ", env) == "lr 3e-4 baseline"
    assert find_run("lr 3e-4 baseline", runs, env) == run
    refused("train.py", runs, env, "no run named")
    assert give_note(other, "never listed", env) == "never listed"
    assert listed_names(env) == {str(run.root): "lr 3e-4 baseline"}
    notes = {path: text for path, (_, text) in listed_notes(env).items()}
    assert notes == {str(run.root): "wider batch", str(other.root): "never listed"}
    assert sorted(run.root.rglob("*")) == before, "nothing is written into its folder"
    assert give_name(other, "x" * 200, env) == "x" * MAX_NAME
    with pytest.raises(ValueError, match="at least one character"):
        give_name(run, " \x1b[31m", env)
    with pytest.raises(ValueError, match="without text"):
        give_note(run, " \x1b[31m", env)


def test_a_name_means_the_runs_of_this_folder_first(tmp_path: Path, env: dict[str, str]) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, run_id, name in (
        (here, "20261120-1412-brave-otter", "gpt"),
        (there, "20261121-1412-brave-otter", "gpt"),
        (there, "20261122-1412-calm-bee", "gpt"),
        (there, "20261123-1412-calm-bee", "bert"),
    ):
        register(make_run(folder, run_id), name, env)
    for text in ("brave-otter", "gpt"):
        assert find_run(text, here, env).run_id == "20261120-1412-brave-otter"
    assert find_run("20261121-1412-brave-otter", here, env).root.parent == there
    refused("calm-bee", here, env, "2 runs match 'calm-bee'")
    refused("nobody", here, env, "`stoker runs` lists 1, `stoker runs --all` 4")
    refused("nobody", there, env, "`stoker runs` lists 3, `stoker runs --all` 4")


def test_the_index_finds_runs_elsewhere_and_forgets_deleted_ones(tmp_path: Path, env: dict[str, str]) -> None:
    run = make_run(tmp_path / "elsewhere")
    register(run, "job", env)
    with (tmp_path / "state" / "stoker" / "index.jsonl").open("ab") as index:
        index.write(b"half a li")
    assert find_run(run.run_id, tmp_path / "runs", env).root == run.root
    run.node().journal.unlink()
    assert known_runs(tmp_path / "runs", env) == []


# -- the trash -------------------------------------------------------------------------------------


def thrown_run(
    tmp_path: Path, name: str = "brave-otter", *, mode: str = "launched", over: bool = True
) -> RunPaths:
    run = make_run(tmp_path, name)
    run.run_json.write_text("{}")
    journal = JournalWriter(run.node().journal)
    journal.append(ev.RunStarted(t=1.0, run_id=name, name="x", mode=mode, host="h"))
    journal.append(ev.LaunchIntended(t=2.0, attempt=1, reason="first start", argv=("x",)))
    if over:
        journal.append(ev.RunEnded(t=3.0, outcome=ev.Outcome.SUCCEEDED, exit_code=0, reason="done"))
    journal.close()
    return run


def test_a_deleted_run_comes_back_as_it_was(tmp_path: Path, env: dict[str, str]) -> None:
    run = thrown_run(tmp_path, "20261121-1412-brave-otter")
    newer = thrown_run(tmp_path, "20261121-1412-able-ant")
    for second, each in enumerate((run, newer)):
        for path in (each.run_json, each.root):
            os.utime(path, (1000 + second, 1000 + second))
    before = sorted(path.relative_to(run.root) for path in run.root.rglob("*"))
    thrown = throw_away(run)
    assert thrown.root == tmp_path / TRASH / run.run_id
    assert not run.root.exists()
    assert (tmp_path / TRASH).stat().st_mode & 0o777 == 0o700
    assert bring_back(thrown) == run
    assert sorted(path.relative_to(run.root) for path in run.root.rglob("*")) == before
    assert known_runs(tmp_path, env) == [newer, run], "among those of its minute it keeps its place"
    thrown = throw_away(run)
    make_run(tmp_path, run.run_id)
    with pytest.raises(FileExistsError, match="there again"):
        bring_back(thrown)
    assert thrown.root.exists()


def test_a_run_whose_ranks_may_live_is_not_deleted(tmp_path: Path) -> None:
    run = thrown_run(tmp_path, over=False)
    why = "brave-otter has no supervisor process, but its ranks may live: open it, A takes it over, then stop it"
    with pytest.raises(StillLives, match=f"^{why}$"):
        throw_away(run)
    run.node(1).root.mkdir()
    lock = KeeperLock(run.node(1).lock, start_time=1.0)
    with pytest.raises(StillLives, match=r"^brave-otter has a live supervisor process: stop it first$"):
        throw_away(run)
    lock.release()
    assert run.root.exists()
    watched = thrown_run(tmp_path, "watched", mode="observed", over=False)
    throw_away(watched)
    assert not watched.root.exists(), "nothing was launched there"


def test_a_disk_without_room_for_the_trash_is_an_error_or_the_run_is_removed_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, number = thrown_run(tmp_path), errno.ENOSPC

    def fail(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "touch", fail)
    with pytest.raises(OSError, match="No space left"):
        throw_away(run)
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        throw_away(run, in_place=True)
    assert run.root.exists()
    number = errno.ENOSPC
    assert throw_away(run, in_place=True) == run
    assert not run.root.exists()


def test_the_trash_keeps_run_directories_a_week_and_removes_nothing_else(tmp_path: Path) -> None:
    assert empty(tmp_path, 1e10) == 0, "no trash"
    thrown = throw_away(thrown_run(tmp_path))
    os.utime(thrown.root / THROWN, (1000.0, 1000.0))
    assert empty(tmp_path, 1000.0 + KEPT_S) == 0
    assert empty(tmp_path, 1001.0 + KEPT_S) == 1
    assert not thrown.root.exists()
    unmarked = throw_away(thrown_run(tmp_path, "unmarked"))
    (unmarked.root / THROWN).unlink()
    folder = tmp_path / TRASH / "folder"
    folder.mkdir()
    (folder / THROWN).touch()
    elsewhere = thrown_run(tmp_path, "elsewhere")
    (elsewhere.root / THROWN).touch()
    (tmp_path / TRASH / "link").symlink_to(elsewhere.root)
    assert empty(tmp_path, 1e12) == 0
    assert all(path.exists() for path in (unmarked.root, folder, elsewhere.root))


def test_a_name_that_cannot_be_kept_is_an_error_with_the_files_path(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file, so no folder can be made in it")
    run = make_run(tmp_path / "runs")
    with pytest.raises(OSError, match=r"stoker.index"):
        give_name(run, "fond", {"XDG_STATE_HOME": str(tmp_path / "state")})
