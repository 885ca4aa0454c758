"""Which checkpoints are kept, passed over, averaged, looked at and exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.trainer.runs import train_here
from trainer.checkpoint import storage
from trainer.checkpoint.__main__ import main as checkpoint_main


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
