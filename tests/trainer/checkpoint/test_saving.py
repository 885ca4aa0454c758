"""Saving beside the training: what the step waits for, who learns of an error, what is never lost; what is kept, averaged and exported."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import wait_until
from tests.disks import needs_full_device
from tests.tiers import first
from tests.trainer.runs import losses, records, train_here
from trainer.checkpoint import storage
from trainer.checkpoint.__main__ import main as checkpoint_main
from trainer.checkpoint.storage import CheckpointError
from trainer.config import UsageError

SAVING = {"save_every": 2, "num_iterations": 6}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is closed, the disk takes no tensors."""
    opened = threading.Event()
    real = torch.save

    def slow(*args: Any) -> None:
        assert opened.wait(60)
        real(*args)

    monkeypatch.setattr(torch, "save", slow)
    yield opened
    opened.set()


def on_step(path: Path, step: int, act: Callable[[], object]) -> threading.Thread:
    """Acts once the telemetry has this step."""

    def watch() -> None:
        assert wait_until(lambda: path.exists() and f'"step":{step},' in path.read_text(), 60, poll_s=0.001)
        act()

    thread = threading.Thread(target=watch, name="watch")
    thread.start()
    return thread


def every_tensor(held: Any) -> list[torch.Tensor]:
    if isinstance(held, torch.Tensor):
        return [held]
    return [t for inner in held.values() for t in every_tensor(inner)] if isinstance(held, Mapping) else []


def test_written_beside_the_training_is_to_the_bit_what_is_written_in_the_step(tmp_path: Path) -> None:
    common: dict[str, Any] = {**SAVING, "ema_decay": 0.9, "tie_embeddings": True}
    train_here(tmp_path / "now", None, **common, async_save=False)
    train_here(tmp_path / "later", None, **common)
    for step in (2, 4, 6):
        paths = [storage.folder_of(tmp_path / name / "ck", step) for name in ("now", "later")]
        first, second = (every_tensor(storage.load(path).state) for path in paths)
        assert len(first) == len(second) > 20
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        # A tied head is written once in both.
        sizes = [(path / storage.STATE).stat().st_size for path in paths]
        assert sizes[0] == sizes[1]
    found = records(tmp_path / "later", kind="checkpoint_committed")
    assert [(r["step"], r["final"]) for r in found] == [(2, False), (4, False), (6, True)]
    assert all(r["blocked_time_s"] >= 0 and r["write_time_s"] > 0 for r in found)
    assert losses(tmp_path / "now") == losses(tmp_path / "later")


def test_steps_go_on_while_the_disk_is_slow_and_nothing_is_told_before_the_commit(
    tmp_path: Path, gate: threading.Event
) -> None:
    path = tmp_path / "tel" / "rank0.jsonl"
    told: list[str] = []

    def act() -> None:
        told.append(path.read_text())
        gate.set()

    # Step 6 is trained while the checkpoint of step 4 is being written: only then does the disk continue.
    watcher = on_step(path, 6, act)
    try:
        assert train_here(tmp_path, num_iterations=8, save_every=4, fault="slow:0.001@0") == 0
    finally:
        watcher.join(60)
    assert "checkpoint_committed" not in told[0]
    assert [r["step"] for r in records(tmp_path, kind="checkpoint_committed")] == [4, 8]


def test_the_second_save_waits_for_the_first_and_gives_up_in_time(
    tmp_path: Path, gate: threading.Event
) -> None:
    with pytest.raises(CheckpointError, match=r"step_00000002 .* not done after 0\.2 s \(save_timeout_s\)"):
        train_here(tmp_path, None, **SAVING, save_timeout_s=0.2)
    gate.set()
    # What hung continued in the end; the thread is gone, and a resume finds what it committed or nothing.
    assert wait_until(lambda: not any("checkpoint" in t.name for t in threading.enumerate()), 10)
    assert train_here(tmp_path, None, **SAVING, resume_from="auto") == 0


@pytest.mark.parametrize("later", first(1, [True, False]), ids=["beside", "in the step"])
def test_a_full_disk_is_named_at_the_next_step_and_the_last_good_one_is_untouched(
    later: bool, tmp_path: Path
) -> None:
    needs_full_device()
    settings: dict[str, Any] = {"save_every": 2, "num_iterations": 40, "async_save": later}
    with pytest.raises(CheckpointError, match="step_00000004 could not be written: No space left on device"):
        train_here(tmp_path, None, **settings, fault="disk_full@4")
    assert [p.name for p in (tmp_path / "ck").iterdir()] == ["step_00000002"]
    storage.verify(tmp_path / "ck" / "step_00000002")
    assert [r["step"] for r in records(tmp_path, kind="checkpoint_committed")] == [2]
    # Not at the end: at the step after the write has ended.
    assert max(losses(tmp_path)) < 40


def test_a_stop_that_cannot_be_saved_is_no_75(tmp_path: Path) -> None:
    needs_full_device()
    (tmp_path / "stop").touch()
    with pytest.raises(CheckpointError):
        train_here(
            tmp_path,
            {"STOKER_STOP_FILE": str(tmp_path / "stop")},
            fault="disk_full@0",
            continue_on_save_error=True,
        )
    assert records(tmp_path)[-1]["exit_code"] == 1


def test_a_folder_that_cannot_be_is_refused_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    lost: dict[str, Any] = {"checkpoint_dir": str(tmp_path / "file" / "ck"), "num_iterations": 2}
    with pytest.raises(UsageError, match=r"checkpoint_dir .*file/ck cannot be written: Not a directory"):
        train_here(tmp_path, **lost)
    assert losses(tmp_path) == {}
    with pytest.raises(CheckpointError, match="cannot be written"):
        train_here(tmp_path, **lost, save_every=1, continue_on_save_error=True)
    assert len(losses(tmp_path)) == 2
    assert capsys.readouterr().err.count("training continues") == 2


def test_a_folder_that_vanishes_is_not_made_anew_elsewhere(tmp_path: Path) -> None:
    watcher = on_step(tmp_path / "tel" / "rank0.jsonl", 1, lambda: shutil.rmtree(tmp_path / "ck"))
    try:
        with pytest.raises(CheckpointError, match=r"ck: No such file or directory \(was its mount lost\?\)"):
            train_here(tmp_path, save_every=20, num_iterations=60, fault="slow:0.01@0")
    finally:
        watcher.join(60)
    assert not (tmp_path / "ck").exists()


def test_a_write_under_way_is_finished_and_told_when_the_training_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="fault asked for"):
        train_here(tmp_path, save_every=2, fault="exception@2")
    assert [r["step"] for r in records(tmp_path, kind="checkpoint_committed")] == [2]
    assert storage.newest(tmp_path / "ck")[0] == tmp_path / "ck" / "step_00000002"


def test_averaged_weights_are_kept_resumed_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"ema_decay": 0.9, "num_iterations": 6}
    train_here(tmp_path / "whole", None, **settings)
    train_here(tmp_path / "broken", None, **{**settings, "save_every": 3})
    for name in ("whole", "broken"):
        assert storage.newest(tmp_path / name / "ck")[0] is not None
    middle = tmp_path / "broken" / "ck" / "step_00000003"
    train_here(tmp_path / "rest", None, **settings, resume_from=str(middle))
    states = [storage.load(tmp_path / n / "ck" / "step_00000006").state for n in ("whole", "rest")]
    for name, average in states[0]["ema"].items():
        assert torch.allclose(average, states[1]["ema"][name], atol=1e-6)
        assert not torch.equal(average, states[0]["model"][name])
    out = tmp_path / "out"
    assert checkpoint_main(["export", str(tmp_path / "whole" / "ck"), str(out), "--ema"]) == 0
    safetensors = pytest.importorskip("safetensors.torch")
    exported = safetensors.load_file(out / "model.safetensors")
    assert torch.equal(exported["embed.weight"], states[0]["ema"]["embed.weight"])
    assert json.loads((out / "config.json").read_text())["depth"] == 1
    assert "averaged" in capsys.readouterr().out


def test_only_the_newest_and_the_best_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer import loop

    values = iter([3.0, 1.0, 2.0, 2.5, 2.6])
    real = loop.evaluate

    def scripted(run_: loop.Run) -> float:
        real(run_)
        run_.state.val_losses[run_.state.step] = next(values)
        return 0.0

    monkeypatch.setattr(loop, "evaluate", scripted)
    train_here(tmp_path, num_iterations=5, save_every=1, eval_every=1, keep_checkpoints=1, keep_best=True)
    assert [path.name for path in storage.committed(tmp_path / "ck")] == ["step_00000005", "step_00000002"]


def test_the_checkpoint_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_here(tmp_path, num_iterations=1)
    capsys.readouterr()
    path = tmp_path / "ck" / "step_00000001"
    assert checkpoint_main(["verify", str(tmp_path / "ck")]) == 0
    assert f"{path}: whole, step 1" in capsys.readouterr().out
    assert checkpoint_main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "samples_seen: 8" in shown
    assert "model/embed.weight  [256, 32]  float32" in shown
    assert checkpoint_main(["export", str(path), str(tmp_path / "x"), "--ema"]) == 1
    assert "no averaged weights" in capsys.readouterr().err
    (path / storage.STATE).write_bytes(b"x")
    assert checkpoint_main(["verify", str(path)]) == 1
    assert checkpoint_main(["verify", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.count("\n") == 2
