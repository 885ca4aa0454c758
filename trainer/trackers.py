"""Experiment trackers and profiler traces: optional, on rank 0, offline unless told otherwise."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import torch

from trainer.config import Config, UsageError
from trainer.loop import Hook, StepReport, TrainState

# The steps of this process that are traced: the first two allocate and compile.
TRACE_FROM, TRACE_STEPS = 2, 4
CLOSE_S = 5.0


class TrackerHook(Hook):
    """Hands numbers to a tracker, every log interval; one that fails is given up, and training continues."""

    def __init__(
        self,
        name: str,
        log: Callable[[dict[str, float], int], object],
        close: Callable[[bool], object],
        *,
        interval: int,
        warn: Callable[[str], None],
    ) -> None:
        self._name = name
        self._log = log
        self._close = close
        self._interval = interval
        self._warn = warn
        self._given_up = False

    def after_step(self, _state: TrainState, report: StepReport, /) -> None:
        """Logs, if this step is due."""
        if report.step % self._interval == 0:
            values = {
                "loss": report.loss,
                "lr": report.lr,
                "grad_norm": report.grad_norm,
                "tokens_per_sec": report.tokens / report.step_time_s,
            }
            self._try(lambda: self._log(values, report.step))

    def after_evaluation(self, state: TrainState, val_loss: float, _seconds: float, /) -> None:
        """Logs the validation loss."""
        self._try(lambda: self._log({"val_loss": val_loss}, state.step))

    def close(self, *, failed: bool = False) -> None:
        """Ends the tracker's run. As failed, it has a few seconds: its server may be what failed, and the other ranks wait."""
        if not failed:
            self._try(lambda: self._close(False))
        elif not self._given_up:
            self._close_failed()

    def _try(self, act: Callable[[], object]) -> None:
        if self._given_up:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - another's library: network, disk, quota; never worth a training
            self._given_up = True
            self._warn(f"{self._name} failed and is given up: {_one_line(error)}")
            self._close_failed()  # what it has not sent yet, if it can

    def _close_failed(self) -> None:
        """Closes as failed, in a thread of its own: whoever waits for it waits `CLOSE_S` at most."""

        def close() -> None:
            with suppress(Exception):
                self._close(True)

        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


class Trace:
    """A trace of a few steps, readable by chrome://tracing and Perfetto. Started, counted and stopped in one thread, as torch wants it."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._say = say
        self._left = TRACE_STEPS
        self._profile: Any = torch.profiler.profile(profile_memory=True, record_shapes=True)
        self._profile.start()

    def step(self) -> bool:
        """One more step is done. Returns: whether it was the last, and the trace is written."""
        self._left -= 1
        if self._left == 0:
            self.write()
        return self._left == 0

    def write(self) -> None:
        """Stops, and writes what there is; whole or not at all."""
        self._profile.stop()
        temporary = self._path.with_name(self._path.name + ".tmp")
        self._profile.export_chrome_trace(str(temporary))
        os.replace(temporary, self._path)
        self._say(f"trace: {self._path} (open it in chrome://tracing or ui.perfetto.dev)")


class TraceHook(Hook):
    """``--profile``: a trace of a few of the first steps."""

    def __init__(self, folder: str, rank: int, say: Callable[[str], None]) -> None:
        self._say = say
        self._path = Path(folder) / f"rank{rank}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._seen = 0
        self._trace: Trace | None = None

    def after_step(self, _state: TrainState, _report: StepReport, /) -> None:
        """Starts before the first traced step, stops after the last."""
        self._seen += 1
        if self._seen == TRACE_FROM:
            self._trace = Trace(self._path, self._say)
        elif self._trace is not None and self._trace.step():
            self._trace = None

    def close(self, *, failed: bool = False) -> None:
        """Writes what was traced, also of a training that was too short or failed."""
        del failed
        if self._trace is not None:
            self._trace.write()
            self._trace = None


class RequestedTraces(Hook):
    """A trace whenever the supervisor asks: by the time of change of the file ``profile`` beside its stop file.

    A look costs 2 µs a step. A trace that cannot be written costs a warning, never the training.
    """

    def __init__(
        self, asked: Path, folder: Path, rank: int, say: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        self._asked, self._folder, self._rank, self._say, self._warn = asked, folder, rank, say, warn
        self._answered_ns = self._asked_ns()  # what was asked of another process is not asked of this one
        self._trace: Trace | None = None

    def after_step(self, _state: TrainState, report: StepReport, /) -> None:
        """Starts a trace that is asked for, counts one that runs."""
        try:
            if self._trace is not None:
                if self._trace.step():
                    self._trace = None
            elif (asked_ns := self._asked_ns()) > self._answered_ns:
                self._answered_ns = asked_ns
                name = f"trace-step{report.step:08d}-rank{self._rank}.json"
                self._trace = Trace(self._folder / name, self._say)
        except (OSError, RuntimeError) as error:  # a full disk; a profiler that another one has already
            self._trace = None
            self._warn(f"no trace: {_one_line(error)}")

    def close(self, *, failed: bool = False) -> None:
        """Writes what was traced."""
        del failed
        trace, self._trace = self._trace, None
        try:
            if trace is not None:
                trace.write()
        except (OSError, RuntimeError) as error:
            self._warn(f"no trace: {_one_line(error)}")

    def _asked_ns(self) -> int:
        try:
            return self._asked.stat().st_mtime_ns
        except OSError:
            return 0


def asked_for(config: Config, warn: Callable[[str], None]) -> list[Hook]:
    """The trackers that the config names, started; one that does not start is a warning.

    Raises:
        UsageError: one is not installed.
    """
    starts: list[tuple[str, Callable[[], _Started]]] = []
    if config.use_wandb:
        wandb = _module("wandb", "--use_wandb")
        starts.append(("W&B", lambda: _start_wandb(wandb, config)))
    if config.tensorboard_dir:
        tensorboard = _module("torch.utils.tensorboard", "--tensorboard_dir")
        starts.append(("TensorBoard", lambda: _start_tensorboard(tensorboard, config)))
    if config.mlflow_dir:
        # It reports its own use over the network unless told not to.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        mlflow = _module("mlflow", "--mlflow_dir")
        starts.append(("MLflow", lambda: _start_mlflow(mlflow, config)))
    found: list[Hook] = []
    for name, start in starts:
        try:
            log, close = start()
        except Exception as error:  # noqa: BLE001 - as in TrackerHook: a tracker never ends a training
            warn(f"{name} did not start and is left out: {_one_line(error)}")
            continue
        found.append(TrackerHook(name, log, close, interval=config.log_interval, warn=warn))
    return found


# How to log {name: value} at a step, and how to end.
_Started: TypeAlias = tuple[Callable[[dict[str, float], int], object], Callable[[bool], object]]


def _start_wandb(wandb: Any, config: Config) -> _Started:
    os.environ.setdefault("WANDB_MODE", "offline")
    run = wandb.init(project=config.wandb_project, name=config.wandb_run_name or None, config=asdict(config))
    return lambda values, step: run.log(values, step=step), lambda failed: run.finish(exit_code=int(failed))


def _start_tensorboard(tensorboard: Any, config: Config) -> _Started:
    writer = tensorboard.SummaryWriter(config.tensorboard_dir)

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, lambda _failed: writer.close()


def _start_mlflow(mlflow: Any, config: Config) -> _Started:
    # A database, as MLflow wants it: from 3.17 on it refuses to write a plain folder.
    folder = Path(config.mlflow_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    run_id = mlflow.start_run().info.run_id

    def close(failed: bool) -> None:
        if failed:
            # By its id: the active run belongs to one thread, and end_run in another does nothing.
            mlflow.MlflowClient().set_terminated(run_id, status="FAILED")
        else:
            mlflow.end_run()

    try:
        mlflow.log_params(asdict(config))
    except Exception:
        close(failed=True)
        raise
    return lambda values, step: mlflow.log_metrics(values, step=step), close


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _module(name: str, flag: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "tensorboard" if "tensorboard" in name else name
        raise UsageError(
            f"{flag}: {package} is not installed ({error}): pip install {package}, or leave it out"
        ) from None
