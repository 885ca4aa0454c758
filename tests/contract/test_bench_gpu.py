"""The GPU bench where there is none: its arithmetic, its steps on a CPU, and that it invents nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import gpu
from tests.trainer.runs import TINY
from trainer.config import Config

SMALL = Config(**{**TINY, "total_batch_size": 0, "vocab_size": 256, "num_iterations": 1000})


def figures(rate: float, step_s: float, mfu: float | None = None, held: int | None = None) -> gpu.Figures:
    return gpu.Figures(rate, step_s, mfu, held)


def test_goals_are_judged_against_their_bounds() -> None:
    found = {
        "precision": {"float32": figures(100, 1), "tf32": figures(150, 1), "bfloat16": figures(210, 1)},
        "recomputed": {"kept": figures(1, 1.0, held=1000), "recomputed": figures(1, 1.3, held=400)},
        "compiled": {"bfloat16": replace(figures(1, 1, mfu=0.4), compiled=True)},
    }
    told = {goal.name: goal for goal in gpu.goals(found, "NVIDIA H200")}
    assert [goal.met for goal in told.values()] == [True, False, True, False]
    assert told["recomputed / kept activation memory"].value == pytest.approx(0.4)
    other = gpu.goals(found, "NVIDIA A10")
    assert other[-1].met is None, "its goal is for H100 and H200"
    eager = {**found, "compiled": {"bfloat16": figures(1, 1, mfu=0.4)}}
    assert gpu.goals(eager, "NVIDIA H200")[-1].met is None, "no compiler was there"


def test_the_comparisons_step_through_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.device] = []
    monkeypatch.setattr(gpu, "wait_for", seen.append)
    found = gpu.measure(SMALL, replace(SMALL, depth=2), gpu.Rounds(warm_up=1, turns=1, steps=2))
    assert {name: list(several) for name, several in found.items()} == {
        "precision": ["float32", "tf32", "bfloat16"],
        "recomputed": ["kept", "recomputed"],
        "compiled": ["bfloat16"],
    }
    assert all(one.tokens_per_sec > 0 for several in found.values() for one in several.values())
    # Six trainings of 1 + 1 + 2 steps, the device waited for before and after each.
    assert len(seen) == 6 * 4 * 2
    assert len(gpu.goals(found, "no GPU")) == 2, "no memory and no MFU where there is no CUDA"


def test_without_a_device_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--keep", str(tmp_path / "gpu.json")]) == 2
    assert capsys.readouterr().err == "no CUDA device is visible: nothing was measured, nothing is written\n"
    assert list(tmp_path.iterdir()) == []
