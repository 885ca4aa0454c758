"""Trackers: on rank 0 alone, offline unless told otherwise, and never worth a training."""

from __future__ import annotations

import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.tiers import first
from tests.trainer.runs import flags, records, run, train_here
from trainer import loop
from trainer.config import UsageError
from trainer.loop import NonFiniteError

FAKES = Path(__file__).parents[1] / "fakes" / "trackers"


def calls(path: Path, start: str = "") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [call for call in found if call["call"].startswith(start)]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Fakes of W&B and MLflow are installed; the file of their calls."""
    monkeypatch.syspath_prepend(str(FAKES))
    for name in ("wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("WANDB_MODE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRACKER_LOG", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.mark.e2e
def test_of_two_ranks_one_tracks(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "telemetry_dir": "tel",
        "log_interval": 2,
        "eval_every": 3,
        "use_wandb": True,
        "wandb_run_name": "night",
        "mlflow_dir": "ml runs",
    }
    done = run(
        2, *flags(**settings), cwd=tmp_path, PYTHONPATH=str(FAKES), TRACKER_LOG=str(tmp_path / "calls")
    )
    assert done.returncode == 0, done.stderr
    told = calls(tmp_path / "calls")
    assert {call["rank"] for call in told} == {"0"}
    assert records(tmp_path, rank=1)[-1]["reason"] == "done"
    started = calls(tmp_path / "calls", "wandb.init")[0]
    assert (started["project"], started["name"], started["mode"]) == ("trainer", "night", "offline")
    assert started["config"]["depth"] == 1
    assert calls(tmp_path / "calls", "mlflow.set_tracking_uri") == [
        {
            "call": "mlflow.set_tracking_uri",
            "rank": "0",
            "uri": f"sqlite:///{tmp_path / 'ml runs' / 'mlflow.db'}",
            "telemetry_off": "true",
        }
    ]
    for name, end in (("wandb.log", "wandb.finish"), ("mlflow.log_metrics", "mlflow.end_run")):
        logged = calls(tmp_path / "calls", name)
        assert [call["step"] for call in logged] == [2, 3, 4, 6, 6]
        assert {*logged[0]["data"]} == {"loss", "lr", "grad_norm", "tokens_per_sec"}
        assert {*logged[1]["data"]} == {"val_loss"}
        assert len(calls(tmp_path / "calls", end)) == 1


@pytest.mark.parametrize("call", first(1, ["wandb.log", "wandb.init", "wandb.finish"]))
def test_a_tracker_that_fails_is_one_warning(
    call: str,
    tmp_path: Path,
    fakes: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRACKER_FAILS", call)
    settings: dict[str, Any] = {"use_wandb": True, "mlflow_dir": str(tmp_path / "ml"), "log_interval": 1}
    assert train_here(tmp_path, None, **settings) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "W&B" in line]
    assert len(told) == 1
    assert f"RuntimeError: {call} is out of order second line" in told[0]
    assert len(calls(fakes, "mlflow.log_metrics")) == 6
    assert len(calls(fakes, "mlflow.end_run")) == 1


def test_tensorboard_gets_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, int]] = []
    ended: list[str] = []

    class SummaryWriter:
        def __init__(self, log_dir: str | None = None) -> None:
            self.folder = str(log_dir)

        def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
            assert global_step is not None
            told.append((tag, scalar_value, global_step))

        def close(self) -> None:
            ended.append(self.folder)

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    train_here(tmp_path, None, tensorboard_dir=str(tmp_path / "tb"), log_interval=3, eval_every=6)
    expected = {r["step"]: r["loss"] for r in records(tmp_path, kind="step") if "loss" in r}
    losses = {step: value for tag, value, step in told if tag == "loss"}
    assert losses == pytest.approx({step: expected[step] for step in (3, 6)})
    assert {tag for tag, _, _ in told} == {"loss", "lr", "grad_norm", "tokens_per_sec", "val_loss"}
    assert ended == [str(tmp_path / "tb")]


def test_a_tracker_that_is_not_installed_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("wandb", "mlflow", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    flags_of_each: dict[str, Any] = {"use_wandb": True, "mlflow_dir": "ml", "tensorboard_dir": "tb"}
    for flag, value in flags_of_each.items():
        with pytest.raises(UsageError, match="pip install"):
            train_here(tmp_path, None, **{flag: value})


def test_runs_of_a_training_that_failed_are_closed_as_failed(tmp_path: Path, fakes: Path) -> None:
    with pytest.raises(NonFiniteError):
        train_here(
            tmp_path,
            None,
            use_wandb=True,
            mlflow_dir=str(tmp_path / "ml"),
            profile=str(tmp_path / "traces"),
            fault="nan@4",
        )
    assert [call["exit_code"] for call in calls(fakes, "wandb.finish")] == [1]
    assert [(c["run_id"], c["status"]) for c in calls(fakes, "mlflow.set_terminated")] == [("r1", "FAILED")]
    assert calls(fakes, "mlflow.end_run") == []
    assert (tmp_path / "traces" / "rank0.json").exists(), "what was traced until then"


def test_a_trace_is_written_whenever_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is a file whose time of change moves on; what is old when the process starts asks nothing."""
    asked = tmp_path / "attempt" / "profile"
    asked.parent.mkdir()
    asked.touch()
    env = {"STOKER_STOP_FILE": str(tmp_path / "attempt" / "stop"), "STOKER_RUN_DIR": str(tmp_path / "run")}
    seen: list[int] = []

    def step(run: Any, batches: Any, of: Any = loop.train_step) -> Any:
        seen.append(run.state.step)
        if len(seen) in {3, 12}:
            os.utime(asked, ns=(time.time_ns(), time.time_ns() + len(seen) * 1_000_000_000))
        return of(run, batches)

    monkeypatch.setattr(loop, "train_step", step)
    train_here(tmp_path, env=env, num_iterations=20)
    traces = sorted((tmp_path / "run" / "artifacts").iterdir())
    assert [path.name for path in traces] == [
        "trace-step00000003-rank0.json",
        "trace-step00000012-rank0.json",
    ]
    assert all(json.loads(path.read_text())["traceEvents"] for path in traces)
