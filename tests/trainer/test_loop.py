"""The loop's promises, with real trainings in this process."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.runs import losses, records, train_here
from trainer.checkpoint import storage
from trainer.checkpoint.storage import CheckpointError
from trainer.config import UsageError
from trainer.loop import NonFiniteError
from trainer.model.optim import step_unless
from trainer.reporting.console import Console, bar


def close(one: dict[int, float], other: dict[int, float], tolerance: float = 1e-4) -> bool:
    return one.keys() == other.keys() and all(abs(one[k] - other[k]) <= tolerance for k in one)


def test_the_micro_batch_does_not_change_the_losses(tmp_path: Path) -> None:
    for micro in (8, 4, 1):
        assert train_here(tmp_path / str(micro), device_batch_size=micro, num_iterations=12) == 0
    assert close(losses(tmp_path / "8"), losses(tmp_path / "4"))
    assert close(losses(tmp_path / "8"), losses(tmp_path / "1"))
    assert losses(tmp_path / "8")[12] < losses(tmp_path / "8")[1]


def test_a_resumed_run_equals_the_unbroken_one_even_with_another_micro_batch(tmp_path: Path) -> None:
    schedule: dict[str, Any] = {
        "seq_len_schedule": "0:16,4:32",
        "num_iterations": 8,
        "save_every": 3,
        "warmup_steps": 2,
    }
    train_here(tmp_path / "whole", **schedule)
    stop = tmp_path / "stop"
    # The supervisor's request is there from the start: one step, a checkpoint, exit 75.
    stop.touch()
    assert train_here(tmp_path / "broken", {"STOKER_STOP_FILE": str(stop)}, **schedule) == 75
    stop.unlink()
    assert records(tmp_path / "broken", kind="checkpoint_committed")[0]["step"] == 1
    resume = {"resume_from": "auto", "device_batch_size": 2}
    assert train_here(tmp_path / "broken", {"STOKER_STOP_FILE": str(stop)}, **schedule, **resume) == 0
    assert close(losses(tmp_path / "whole"), losses(tmp_path / "broken"))
    assert records(tmp_path / "broken")[-1]["reason"] == "done"
    # Once more, from a checkpoint in the middle, by its path and from another folder.
    middle = tmp_path / "whole" / "ck" / "step_00000006"
    train_here(tmp_path / "third", **schedule, resume_from=str(middle))
    assert close({s: v for s, v in losses(tmp_path / "whole").items() if s > 6}, losses(tmp_path / "third"))


def test_resume_auto_passes_over_what_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_here(tmp_path, save_every=2, num_iterations=4)
    (tmp_path / "ck" / "step_00000004" / storage.STATE).write_bytes(b"half")
    train_here(tmp_path, num_iterations=5, resume_from="auto")
    out, err = capsys.readouterr()
    assert "resumed from" in out
    assert "step 2, 16 samples seen" in out
    assert "damaged" in err
    with pytest.raises(CheckpointError, match="damaged"):
        train_here(tmp_path, resume_from=str(tmp_path / "ck" / "step_00000004"))


def test_a_folder_of_checkpoints_gives_its_newest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_here(tmp_path / "first", num_iterations=4, save_every=2)
    capsys.readouterr()
    train_here(tmp_path / "second", num_iterations=5, resume_from=str(tmp_path / "first" / "ck"))
    assert "step_00000004: step 4" in capsys.readouterr().out
    (tmp_path / "third" / "empty").mkdir(parents=True)
    (tmp_path / "third" / "half" / "step_00000007").mkdir(parents=True)
    (tmp_path / "third" / "file").touch()
    capsys.readouterr()
    for wanted, said in {
        "empty": "no committed checkpoint",
        "half": "no committed checkpoint",
        "half/step_00000007": "no committed checkpoint",
        "half/step_00000008": "no such folder",
        "file": "not a folder",
    }.items():
        with pytest.raises(UsageError, match=said):
            train_here(tmp_path / "third", resume_from=str(tmp_path / "third" / wanted))
        assert capsys.readouterr().out == "", "nothing is built before"


def test_another_models_checkpoint_is_refused_with_the_difference(tmp_path: Path) -> None:
    train_here(tmp_path, num_iterations=1)
    with pytest.raises(UsageError, match=r"depth 1 \(here 2\)"):
        train_here(tmp_path, num_iterations=2, depth=2, resume_from="auto")


def test_samples_a_step_stay_while_lengths_grow(tmp_path: Path) -> None:
    train_here(tmp_path, seq_len_schedule="0:8,2:16,4:32", num_iterations=6)
    steps = [r for r in records(tmp_path, kind="step") if "loss" in r]
    assert [r["seq_len"] for r in steps] == [8, 8, 16, 16, 32, 32]
    assert [r["tokens_seen"] for r in steps] == [64, 128, 256, 384, 640, 896]


def test_a_loss_that_is_not_finite_fails_unless_skipping_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"loss nan.* at step 3"):
        train_here(tmp_path, fault="nan@2")
    last = records(tmp_path)[-1]
    assert (last["kind"], last["exit_code"]) == ("exit", 1)
    assert last["reason"].startswith("NonFiniteError")
    assert train_here(tmp_path / "skip", fault="nan@2", skip_invalid_loss=True) == 0
    assert math.isnan(float(losses(tmp_path / "skip")[3]))
    assert math.isfinite(losses(tmp_path / "skip")[6])
    with pytest.raises(NonFiniteError):
        train_here(
            tmp_path / "many",
            fault=",".join(f"nan@{k}" for k in range(20)),
            skip_invalid_loss=True,
            num_iterations=20,
        )


def test_every_record_keeps_to_the_schema(tmp_path: Path) -> None:
    train_here(tmp_path, save_every=2, eval_every=3, num_iterations=4, memory_cap_step=2)
    found = records(tmp_path)
    base: dict[str, Any] = {"v": 1, "rank": 0}
    for record in found:
        assert base.items() <= record.items()
        assert isinstance(record["t_wall"], float)
        assert isinstance(record["t_mono"], float)
        assert isinstance(record["step"], int)
        assert record["kind"] in {"phase", "step", "checkpoint_committed", "warning", "exit"}
    assert [r["t_mono"] for r in found] == sorted(r["t_mono"] for r in found)
    step = next(r for r in found if r["kind"] == "step")
    numbers = {"loss", "lr", "grad_norm", "tokens_per_sec", "samples_per_sec", "step_time_s", "data_wait_s"}
    assert numbers | {"total_steps", "seq_len", "memory_used_bytes", "rss_bytes", "vm_bytes"} <= step.keys()
    base_record = next(r for r in found if "memory_base_bytes" in r)
    assert base_record["kind"] == "phase"
    assert found.index(base_record) < found.index(step)
    assert (base_record["micro_batch"], base_record["accumulation"], base_record["global_batch"]) == (4, 2, 8)
    assert [r["step"] for r in found if r["kind"] == "checkpoint_committed"] == [2, 4]
    assert [r["final"] for r in found if r["kind"] == "checkpoint_committed"] == [False, True]
    assert all(Path(r["path"]).is_dir() for r in found if r["kind"] == "checkpoint_committed")
    assert [r["step"] for r in found if "val_loss" in r] == [3, 4]
    phases = [r["phase"] for r in found if r["kind"] == "phase"]
    assert phases[:2] == ["rendezvous", "loading"]
    assert {"stepping", "evaluating", "checkpointing"} <= set(phases)
    # A save ends before the next step, and what ends it is told: a stall in it is measured by its own pace.
    places = [
        r.get("phase") or r["kind"] for r in found if r["kind"] in {"phase", "step"} and "val_loss" not in r
    ]
    assert places[places.index("checkpointing") + 1 :][:2] == ["stepping", "step"]
    assert (found[-1]["kind"], found[-1]["exit_code"], found[-1]["reason"]) == ("exit", 0, "done")


def test_a_progress_bar_stands_on_a_terminal_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen, pipe = Terminal(), io.StringIO()
    for stream in (screen, pipe):
        console = Console(0, stream)
        console.progress(15, 60)
        console.say("step 15/60")
    assert bar(15, 60) == "[" + "█" * 7 + "░" * 23 + "] 15/60"
    assert bar(15, 60) in screen.getvalue()
    assert pipe.getvalue() == "step 15/60\n"
    other = Terminal()
    Console(1, other).progress(1, 2)
    assert other.getvalue() == ""


def test_a_step_that_is_not_finite_changes_neither_weights_nor_moments() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    weight.grad = torch.ones(3)
    step_unless(optimizer, torch.tensor(False))
    before = (weight.detach().clone(), {k: v.clone() for k, v in optimizer.state[weight].items()})
    weight.grad = torch.tensor([float("nan"), 1.0, 1.0])
    step_unless(optimizer, torch.tensor(True))
    assert torch.equal(weight, before[0])
    assert all(torch.equal(optimizer.state[weight][key], held) for key, held in before[1].items())
    assert not hasattr(optimizer, "found_inf")  # whoever steps it next means it


def test_an_overflow_of_float16_skips_the_step_and_halves_the_scale(tmp_path: Path) -> None:
    fault: dict[str, Any] = {"fault": "nan@1", "skip_invalid_loss": True}
    assert train_here(tmp_path, dtype="float16", num_iterations=3, **fault) == 0
    scales = [step["loss_scale"] for step in records(tmp_path, kind="step") if "loss" in step]
    assert scales == [65536.0, 32768.0, 32768.0]
