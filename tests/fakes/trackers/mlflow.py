"""The calls of MLflow 3.17 that the trainer makes, with their signatures; each becomes a line of $TRACKER_LOG."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

from wandb import _note

ACTIVE = threading.local()  # as in MLflow: a run that one thread started is not another thread's to end


def set_tracking_uri(uri: str) -> None:
    _note("mlflow.set_tracking_uri", uri=uri, telemetry_off=os.environ.get("MLFLOW_DISABLE_TELEMETRY"))


def start_run(
    run_id: str | None = None,
    experiment_id: str | None = None,
    run_name: str | None = None,
    nested: bool = False,
) -> SimpleNamespace:
    _note("mlflow.start_run", run_name=run_name)
    ACTIVE.run = run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    return run


def log_params(params: dict[str, Any], synchronous: bool | None = None, run_id: str | None = None) -> None:
    _note("mlflow.log_params", params=params)


def log_metrics(metrics: dict[str, float], step: int | None = None, synchronous: bool | None = None) -> None:
    _note("mlflow.log_metrics", data=metrics, step=step)


def end_run(status: str = "FINISHED") -> None:
    if getattr(ACTIVE, "run", None) is not None:
        _note("mlflow.end_run", status=status)
        ACTIVE.run = None


class MlflowClient:
    """Acts on a run by its id, from any thread."""

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        _note("mlflow.set_terminated", run_id=run_id, status=status)
