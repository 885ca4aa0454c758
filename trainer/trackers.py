"""Experiment trackers and profiler traces: optional, on rank 0, offline unless told otherwise."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainer.config import Config, UsageError
from trainer.hooks import Quiet
from trainer.loop import StepReport, TrainState

# The steps of this process that are traced: the first two allocate and compile.
TRACE_FROM, TRACE_STEPS = 2, 4


class TrackerHook(Quiet):
    """Hands numbers to a tracker, every log interval."""

    def __init__(
        self, log: Callable[[dict[str, float], int], None], close: Callable[[], None], interval: int
    ) -> None:
        self._log = log
        self._close = close
        self._interval = interval

    def after_step(self, _state: TrainState, report: StepReport, /) -> None:
        """Logs, if this step is due."""
        if report.step % self._interval == 0:
            rate = report.tokens / report.step_time_s
            values = {
                "loss": report.loss,
                "lr": report.rate,
                "grad_norm": report.grad_norm,
                "tokens_per_sec": rate,
            }
            self._log(values, report.step)

    def after_evaluation(self, state: TrainState, val_loss: float, _seconds: float, /) -> None:
        """Logs the validation loss."""
        self._log({"val_loss": val_loss}, state.step)

    def close(self) -> None:
        """Ends the tracker's run."""
        self._close()


class TraceHook(Quiet):
    """Writes a trace of a few steps, readable by chrome://tracing and Perfetto."""

    def __init__(self, folder: str, rank: int) -> None:
        self._path = Path(folder) / f"rank{rank}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._seen = 0
        self._profile: Any = None

    def after_step(self, _state: TrainState, _report: StepReport, /) -> None:
        """Starts before the first traced step, stops after the last."""
        self._seen += 1
        if self._seen == TRACE_FROM:
            self._profile = torch.profiler.profile(profile_memory=True, record_shapes=True)
            self._profile.start()
        elif self._seen == TRACE_FROM + TRACE_STEPS:
            self.close()

    def close(self) -> None:
        """Writes what was traced, also of a training that was too short."""
        if self._profile is not None:
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._path))
            self._profile = None


def asked_for(config: Config) -> list[Quiet]:
    """The trackers that the config names.

    Raises:
        UsageError: one is not installed.
    """
    found: list[Quiet] = []
    if config.use_wandb:
        wandb = _module("wandb", "--use_wandb")
        os.environ.setdefault("WANDB_MODE", "offline")
        run = wandb.init(project=config.wandb_project, name=config.wandb_run_name or None)
        found.append(
            TrackerHook(lambda values, step: run.log(values, step=step), run.finish, config.log_interval)
        )
    if config.tensorboard_dir:
        writer = _module("torch.utils.tensorboard", "--tensorboard_dir").SummaryWriter(config.tensorboard_dir)

        def scalars(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        found.append(TrackerHook(scalars, writer.close, config.log_interval))
    if config.mlflow_dir:
        mlflow = _module("mlflow", "--mlflow_dir")
        mlflow.set_tracking_uri(Path(config.mlflow_dir).absolute().as_uri())
        mlflow.start_run()
        found.append(
            TrackerHook(
                lambda values, step: mlflow.log_metrics(values, step=step),
                mlflow.end_run,
                config.log_interval,
            )
        )
    return found


def _module(name: str, flag: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "tensorboard" if "tensorboard" in name else name
        raise UsageError(
            f"{flag}: {package} is not installed ({error}): pip install {package}, or leave it out"
        ) from None
