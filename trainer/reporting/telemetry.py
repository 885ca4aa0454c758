"""The wire to a supervisor: one JSON object a line, one file a rank (docs/telemetry.md)."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

VERSION = 1
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class Kind(StrEnum):
    """The closed set of records."""

    PHASE = "phase"
    STEP = "step"
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    WARNING = "warning"
    EXIT = "exit"


class Phase(StrEnum):
    """What a rank is doing; the same words as the supervisor's."""

    RENDEZVOUS = "rendezvous"
    LOADING = "loading"
    COMPILING = "compiling"
    STEPPING = "stepping"
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"


class Telemetry:
    """Appends records of one rank; without a folder it writes nothing.

    A record is one write(2), so that a reader sees whole lines or a torn last one. A telemetry file that
    cannot be written never ends a training: it is said once, and given up.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._rank = rank
        self._file: int | None = None
        if folder:
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
                path = os.path.join(folder, f"rank{rank}.jsonl")
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            except OSError as error:
                self._give_up(error)

    @property
    def on(self) -> bool:
        """Whether records are written."""
        return self._file is not None

    def emit(self, kind: Kind, step: int, **values: Any) -> None:
        """Writes one record. Values of None are left out; JSON has no NaN: it becomes the text "NaN"."""
        if self._file is None:
            return
        record: dict[str, Any] = {
            "v": VERSION,
            "t_wall": round(time.time(), 6),
            "t_mono": round(time.monotonic(), 6),
            "kind": kind.value,
            "rank": self._rank,
            "step": step,
        }
        for name, value in values.items():
            if isinstance(value, float):
                record[name] = float(f"{value:.9g}") if math.isfinite(value) else _NOT_FINITE[str(value)]
            elif value is not None:
                record[name] = value
        line = json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
        try:
            os.write(self._file, line.encode())
        except OSError as error:
            self._give_up(error)

    def warn(self, step: int, code: str, text: str) -> None:
        """Writes a warning: `code` is a fixed word, `text` one line for people."""
        self.emit(Kind.WARNING, step, code=code, text=text)

    def close(self) -> None:
        """Closes the file; further records are dropped."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _give_up(self, error: OSError) -> None:
        self.close()
        sys.stderr.write(f"trainer: rank {self._rank}: telemetry is off: {error}\n")
