"""The calls of W&B 0.31 that the trainer makes, with their signatures; each becomes a line of $TRACKER_LOG."""

from __future__ import annotations

import json
import os
from typing import Any


def _note(call: str, **values: Any) -> None:
    if call == os.environ.get("TRACKER_FAILS"):
        raise RuntimeError(f"{call} is out of order\nsecond line")
    with open(os.environ["TRACKER_LOG"], "a", encoding="utf-8") as file:
        record = {"call": call, "rank": os.environ.get("RANK", "0"), **values}
        file.write(json.dumps(record) + "\n")


class Run:
    """What init returns."""

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        _note("wandb.log", data=data, step=step, commit=commit)

    def finish(self, exit_code: int | None = None) -> None:
        _note("wandb.finish", exit_code=exit_code)


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: str | None = None,  # noqa: A002 - its name there
    id: str | None = None,  # noqa: A002
    name: str | None = None,
    notes: str | None = None,
    tags: list[str] | None = None,
    config: dict[str, Any] | None = None,
) -> Run:
    _note(
        "wandb.init", project=project, name=name, config=config, mode=os.environ.get("WANDB_MODE", "online")
    )
    return Run()
