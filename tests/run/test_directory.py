"""Control requests, the lock, the index of runs, series: what views and keepers meet over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.run import control
from supervisor.run.events import RequestKind
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
    register,
)
from supervisor.run.journal import JournalWriter
from supervisor.run.ownership import KeeperLock, LockTaken, keeper_is_alive, read_holder
from supervisor.run.paths import RunPaths, private
from supervisor.run.series import METRICS, SeriesReader, SeriesWriter, read_rollups


def make_run(runs: Path) -> RunPaths:
    run = claim(runs)
    node = run.node()
    node.root.mkdir(parents=True)
    node.journal.write_bytes(b"")
    return run


def test_a_request_is_seen_whole_once_and_can_be_removed(tmp_path: Path) -> None:
    first = control.send(tmp_path, RequestKind.STOP, if_attempt=2)
    second = control.send(tmp_path, RequestKind.RESTART_WITH, args=control.RequestArgs(micro_batch=8))
    seen = control.pending(tmp_path)
    assert [r.id for r in seen] == [first, second]
    request = seen[1]
    assert isinstance(request, control.Request)
    assert request.args.micro_batch == 8
    assert request.by.uid == os.getuid()
    control.remove(tmp_path, first)
    assert [r.id for r in control.pending(tmp_path)] == [second]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"id":"x","kind":"explode"}',
        '{"schema":9,"id":"x","kind":"stop","by":{"uid":1,"host":"h"}}',
    ],
)
@pytest.mark.fault(
    "hostile input", "a file in control/ that is no request", "answered with the reason, not obeyed"
)
def test_a_file_that_is_no_request_is_answered_not_obeyed(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    (found,) = control.pending(tmp_path)
    assert isinstance(found, control.BadRequest)
    assert found.id == "x"


def test_the_lock_lets_one_keeper_in_and_dies_with_it(tmp_path: Path) -> None:
    path = tmp_path / "keeper.lock"
    assert not keeper_is_alive(path)
    held = KeeperLock(path, start_time=12.5)
    holder = read_holder(path)
    assert holder is not None
    assert (holder.pid, holder.start_time) == (os.getpid(), 12.5)
    assert keeper_is_alive(path)
    with pytest.raises(LockTaken, match=str(os.getpid())):
        KeeperLock(path, start_time=1.0)
    held.release()
    assert not keeper_is_alive(path)
    script = "import sys,os\nfrom pathlib import Path\nfrom supervisor.run.ownership import KeeperLock\nk=KeeperLock(Path(sys.argv[1]),start_time=1.0)\nprint('held',flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert keeper_is_alive(path)
        other.kill()
        other.wait()
    assert not keeper_is_alive(path)


def test_runs_are_found_by_path_id_part_or_not_at_all(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    runs = tmp_path / "runs"
    with pytest.raises(RunNotFound, match="stoker run"):
        find_run(None, runs, env)
    one, two = make_run(runs), make_run(runs)
    for index, run in enumerate((one, two)):
        os.utime(run.root, (1e9 + index, 1e9 + index))
    assert find_run(None, runs, env) == two
    assert find_run(one.run_id, runs, env) == one
    assert find_run(str(one.root), runs, env) == one
    assert find_run(one.run_id[14:], runs, env) == one
    with pytest.raises(RunNotFound, match="2 runs match"):
        find_run(one.run_id[:8], runs, env)
    with pytest.raises(RunNotFound, match="no run named"):
        find_run("zzz", runs, env)
    with KeeperLockOf(one):
        assert find_run(None, runs, env) == one, "the newest live run comes before the newest"
    typed = one.run_id[14:].replace("-", "_") + "s"
    with pytest.raises(RunNotFound, match=f"did you mean {one.run_id}"):
        find_run(typed, runs, env)
    register(two, "wide-net", env)
    with pytest.raises(RunNotFound, match=f"did you mean {two.run_id}"):
        find_run("wide-nte", runs, env)
    link_latest(one)
    assert (runs / "latest").resolve() == one.root.resolve()
    assert len(known_runs(runs, env)) == 2, "the link is not a third run"


class KeeperLockOf:
    def __init__(self, run: RunPaths) -> None:
        self._path = run.node().lock

    def __enter__(self) -> None:
        self._lock = KeeperLock(self._path, start_time=0.0)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_run_is_found_by_its_name_after_ids(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    runs = tmp_path / "runs"
    old, new = make_run(runs), make_run(runs)
    for index, run in enumerate((old, new)):
        os.utime(run.root, (1e9 + index, 1e9 + index))
        register(run, "aaa", env)
    assert find_run("aaa", runs, env) == new, "the newest of that name"
    with pytest.raises(RunNotFound, match="no run named"):
        find_run("aa", runs, env)
    register(old, new.run_id[14:], env)
    assert find_run(new.run_id[14:], runs, env) == new, "a part of an id comes before a name"


def test_a_run_that_is_named_again_has_the_new_name_alone(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    runs = tmp_path / "runs"
    run, other = make_run(runs), make_run(runs)
    register(run, "train.py", env)
    before = sorted(run.root.rglob("*"))
    assert give_name(run, "  lr 3e-4\x1b[31m\n baseline ", env) == "lr 3e-4 baseline"
    assert find_run("lr 3e-4 baseline", runs, env) == run
    with pytest.raises(RunNotFound):
        find_run("train.py", runs, env)
    assert sorted(run.root.rglob("*")) == before, "nothing is written into its folder"
    assert give_name(other, "x" * 200, env) == "x" * MAX_NAME
    with pytest.raises(ValueError, match="at least one character"):
        give_name(run, " \x1b[31m", env)


def test_a_note_leaves_the_name_and_a_name_the_note(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    runs = tmp_path / "runs"
    run, other = make_run(runs), make_run(runs)
    register(run, "train.py", env)
    assert give_note(run, " wider\x1b[31m\n batch ", env) == "wider batch"
    give_name(run, "baseline", env)
    assert give_note(other, "never listed", env) == "never listed"
    assert listed_names(env) == {str(run.root): "baseline"}
    assert {path: text for path, (_, text) in listed_notes(env).items()} == {
        str(run.root): "wider batch",
        str(other.root): "never listed",
    }
    with pytest.raises(ValueError, match="without text"):
        give_note(run, " \x1b[31m", env)


def test_a_name_means_the_runs_of_this_folder_first(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for folder, run_id, name in (
        ("here", "20261120-1412-brave-otter", "gpt"),
        ("there", "20261121-1412-brave-otter", "gpt"),
        ("there", "20261122-1412-calm-bee", "gpt"),
        ("there", "20261123-1412-calm-bee", "bert"),
    ):
        run = RunPaths(tmp_path / folder / run_id)
        run.node().root.mkdir(parents=True)
        run.node().journal.touch()
        register(run, name, env)
    here, there = tmp_path / "here", tmp_path / "there"
    assert find_run("brave-otter", here, env).run_id == "20261120-1412-brave-otter"
    assert find_run("gpt", here, env).run_id == "20261120-1412-brave-otter"
    assert find_run("20261121-1412-brave-otter", here, env).root.parent == there
    with pytest.raises(RunNotFound, match="2 runs match 'calm-bee'"):
        find_run("calm-bee", here, env)
    with pytest.raises(RunNotFound, match="`stoker runs` lists 1, `stoker runs --all` 4"):
        find_run("nobody", here, env)
    with pytest.raises(RunNotFound, match="`stoker runs` lists 3, `stoker runs --all` 4"):
        find_run("nobody", there, env)


def test_the_index_finds_runs_elsewhere_and_forgets_deleted_ones(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    run = make_run(tmp_path / "elsewhere")
    register(run, "job", env)
    with (tmp_path / "state" / "stoker" / "index.jsonl").open("ab") as index:
        index.write(b"half a li")
    assert find_run(run.run_id, tmp_path / "runs", env).root == run.root
    run.node().journal.unlink()
    assert known_runs(tmp_path / "runs", env) == []


@pytest.mark.parametrize("target", ["index.jsonl", "two.jsonl", "/dev/null/x"])
def test_an_index_that_links_to_itself_is_one_that_cannot_be_written(tmp_path: Path, target: str) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    index = tmp_path / "state" / "stoker" / "index.jsonl"
    index.parent.mkdir(parents=True)
    index.symlink_to(target)
    index.with_name("two.jsonl").symlink_to("index.jsonl")
    run = make_run(tmp_path / "runs")
    register(run, "job", env)
    with pytest.raises(OSError, match=r"index\.jsonl"):
        give_name(run, "other", env)
    assert find_run(run.run_id, tmp_path / "runs", env).root == run.root


def test_an_index_that_is_a_link_to_a_file_of_the_users_is_written(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    index = tmp_path / "state" / "stoker" / "index.jsonl"
    index.parent.mkdir(parents=True)
    index.symlink_to(tmp_path / "dotfiles" / "index.jsonl")
    run = make_run(tmp_path / "elsewhere")
    register(run, "job", env)
    assert (tmp_path / "dotfiles" / "index.jsonl").is_file()
    assert find_run("job", tmp_path / "runs", env).root == run.root


def test_with_a_folder_given_runs_elsewhere_are_found_by_their_path_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    here, there = tmp_path / "here", tmp_path / "there"
    ours, other = make_run(here), make_run(there)
    register(ours, "mine", env)
    register(other, "theirs", env)
    monkeypatch.chdir(there)
    for text in (other.run_id, other.run_id[ID_STAMP:], "theirs"):
        assert find_run(text, here, env) == other
        with pytest.raises(RunNotFound, match=f"no run named .* under {here}"):
            find_run(text, here, env, elsewhere=False)
    assert find_run("mine", here, env, elsewhere=False) == ours
    assert find_run(f"./{other.run_id}", here, env, elsewhere=False) == other
    with pytest.raises(RunNotFound, match=f"no run under {tmp_path}/none: start one"):
        find_run(None, tmp_path / "none", env, elsewhere=False)
    assert known_runs(here, env, elsewhere=False) == [ours]


@pytest.mark.fault("secrets and access", "other users of the machine", "run directories are 0700, files 0600")
def test_a_run_directory_is_private(tmp_path: Path) -> None:
    assert claim(tmp_path).root.stat().st_mode & 0o777 == 0o700


def test_series_are_read_as_they_grow_and_rolled_up_by_minute(tmp_path: Path) -> None:
    writer = SeriesWriter(tmp_path)
    reader = SeriesReader(tmp_path, METRICS)
    assert reader.read() == []
    for second in range(150):
        writer.append(METRICS, 600.0 + second, "job", 1, {"loss": float(second), "step": None})
    samples = reader.read()
    assert len(samples) == 150
    assert samples[3].v == {"loss": 3.0, "step": None}
    writer.append(METRICS, 750.0, "job", 1, {"loss": float("nan")})
    assert reader.read()[0].v["loss"] is None
    writer.close()
    rolled = read_rollups(tmp_path, METRICS)
    assert [(r.t, r.v["loss"]) for r in rolled] == [
        (600.0, (0.0, 29.5, 59.0, 60)),
        (660.0, (60.0, 89.5, 119.0, 60)),
        (720.0, (120.0, 134.5, 149.0, 30)),
    ]


def _write_lock(place: Path) -> None:
    KeeperLock(place, start_time=1.0).release()


WRITERS: dict[str, Callable[[Path], object]] = {
    "keeper.lock": _write_lock,
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
