"""Whole checkpoints in a foreign script's folders: found, and nothing half-written, old or unknown taken for one."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.monitoring.found_checkpoints import LOOK_EVERY_S, FoundCheckpoints, seen_file
from supervisor.run import events as ev
from supervisor.run.fold import replay
from supervisor.sources import checkpoints
from supervisor.sources.checkpoints import find_checkpoints, newest_like_checkpoint
from tests.conftest import wait_until
from tests.keeper.fakes import Emitted, FakeClock


def transformers(
    folder: Path, step: int, *, told: int | None = None, weights: str = "model.safetensors"
) -> Path:
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    if weights:
        (made / weights).write_bytes(b"w")
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step if told is None else told}))
    return made


def lightning(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("archive/data.pkl", b"never read")
    return folder / name


def steps(folder: Path, since_t: float = 0.0) -> list[int]:
    return [one.step for one in find_checkpoints([folder], since_t)]


def test_both_layouts_are_found_at_any_usual_depth_in_the_order_of_their_steps(tmp_path: Path) -> None:
    transformers(tmp_path / "out", 1000)
    transformers(tmp_path / "out", 500, weights="model-00001-of-00002.safetensors")
    transformers(tmp_path / "hydra" / "2026" / "11-21", 700, weights="adapter_model.bin")
    lightning(tmp_path / "lightning_logs" / "version_0" / "checkpoints", "epoch=3-step=600.ckpt")
    found = find_checkpoints([tmp_path, tmp_path / "out"], 0.0)
    assert [one.step for one in found] == [500, 600, 700, 1000]
    assert all(os.path.isabs(one.path) and Path(one.path).exists() for one in found)


@pytest.mark.parametrize("spoil", ["no weights", "half a state", "another step", "no state", "tmp"])
def test_a_checkpoint_that_is_not_whole_is_none(tmp_path: Path, spoil: str) -> None:
    transformers(tmp_path, 5)
    bad = transformers(tmp_path, 10, weights="" if spoil == "no weights" else "model.safetensors")
    match spoil:
        case "half a state":
            (bad / "trainer_state.json").write_text('{"global_step": 1')
        case "another step":
            (bad / "trainer_state.json").write_text('{"global_step": 9}')
        case "no state":
            (bad / "trainer_state.json").unlink()
        case "tmp":
            bad.rename(tmp_path / "tmp-checkpoint-10")
    assert steps(tmp_path) == [5]


def test_a_torn_lightning_file_and_one_without_a_step_are_none(tmp_path: Path) -> None:
    whole = lightning(tmp_path, "epoch=0-step=10.ckpt")
    (tmp_path / "epoch=1-step=20.ckpt").write_bytes(whole.read_bytes()[:-30])
    lightning(tmp_path, "last.ckpt")
    assert steps(tmp_path) == [10]


def test_what_lay_there_before_the_run_is_not_the_runs(tmp_path: Path) -> None:
    old = transformers(tmp_path, 10)
    os.utime(old / "trainer_state.json", (1000, 1000))
    transformers(tmp_path, 5)
    assert steps(tmp_path, since_t=2000.0) == [5]


def test_links_are_not_followed_and_a_folder_of_thousands_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    transformers(tmp_path / "a", 5)
    assert steps(tmp_path) == [5]
    monkeypatch.setattr(checkpoints, "MAX_ENTRIES", 3)
    for number in range(10):
        (tmp_path / "a" / f"file{number}").touch()
    assert steps(tmp_path / "a") == []
    assert steps(tmp_path / "absent") == []


def test_a_silent_scripts_checkpoints_are_journalled_once_each(tmp_path: Path) -> None:
    clock, told = FakeClock(epoch=0.0), Emitted()
    job = JobSpec("x", EntryKind.SCRIPT, "x.py", cwd=str(tmp_path), outputs=("out", "absent"))
    found = FoundCheckpoints(job, clock, told)
    began: list[ev.Event] = [ev.LaunchIntended(t=100.0, attempt=1, argv=(), reason="first")]
    transformers(tmp_path / "out", 5)
    found.look(replay(began))
    assert not told.facts, "once a minute is enough"
    clock.now += LOOK_EVERY_S

    def journalled() -> bool:
        found.look(replay([*began, *told.facts]))
        return bool(told.facts)

    assert wait_until(journalled, 5)
    transformers(tmp_path / "out", 10)
    found.finish(replay([*began, *told.facts]))
    found.finish(replay([*began, *told.facts]))
    assert [fact.step for fact in told.facts if isinstance(fact, ev.CheckpointCommitted)] == [5, 10]
    assert all(fact.found for fact in told.facts if isinstance(fact, ev.CheckpointCommitted))


def test_where_the_trainer_tells_of_its_checkpoints_nobody_looks(tmp_path: Path) -> None:
    told = Emitted()
    job = JobSpec("x", EntryKind.SCRIPT, "x.py", cwd=str(tmp_path), outputs=("out",))
    transformers(tmp_path / "out", 5)
    state = replay(
        [
            ev.LaunchIntended(t=100.0, attempt=1, argv=(), reason="first"),
            ev.CheckpointCommitted(t=101.0, attempt=1, step=3, path="c/3"),
        ]
    )
    FoundCheckpoints(job, FakeClock(), told).finish(state)
    assert not told.facts


def likely(folder: Path, name: str, age_s: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"never read")
    os.utime(folder / name, (1000.0 - age_s, 1000.0 - age_s))
    return folder / name


def test_the_newest_file_with_a_checkpoints_name_is_found_by_looking_only(tmp_path: Path) -> None:
    likely(tmp_path, "c3.pt", 50)
    deep = likely(tmp_path / "out" / "epoch", "model.safetensors", 20)
    likely(tmp_path, "train.log", 1)
    likely(tmp_path / ".cache", "new.pt", 1)
    likely(tmp_path / "a" / "b" / "c", "too-deep.pt", 1)
    (tmp_path / "latest.pt").symlink_to(tmp_path / "train.log")
    likely(tmp_path, "empty.pt", 1).write_bytes(b"")
    os.utime(tmp_path / "empty.pt", (999.0, 999.0))
    found = newest_like_checkpoint([tmp_path], 900.0)
    assert found is not None
    assert (found.path, found.t) == (str(deep), 980.0)
    assert newest_like_checkpoint([tmp_path], 990.0) is None, "what lay there before is not this run's"
    assert newest_like_checkpoint([tmp_path / "gone"], 0.0) is None


def test_no_more_entries_are_looked_at_than_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        likely(tmp_path, f"{number}.txt", 1)
    likely(tmp_path / "out", "c3.pt", 1)
    monkeypatch.setattr(checkpoints, "MAX_ENTRIES", 5)
    assert newest_like_checkpoint([tmp_path], 0.0) is None


def test_a_likely_file_is_named_to_a_person(tmp_path: Path) -> None:
    job = JobSpec("x", EntryKind.SCRIPT, "train.py", cwd=str(tmp_path), outputs=("saved/last.pt",))
    state = replay([ev.LaunchIntended(t=900.0, attempt=1, argv=(), reason="first")])
    assert seen_file(job, state) is None
    likely(tmp_path / "saved", "c3.pt", 50)
    said = seen_file(job, state)
    assert said is not None
    assert said.startswith("saved/c3.pt was written at ")
    assert said.endswith("; whether it is whole is not known")
