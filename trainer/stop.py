"""Requests to stop: SIGTERM, SIGUSR1 (SLURM's warning), or the supervisor's stop file."""

from __future__ import annotations

import os
import signal
from types import FrameType


class StopRequest:
    """Remembers that somebody asked this process to checkpoint and leave. A handler only sets a flag."""

    def __init__(self, stop_file: str) -> None:
        self._file = stop_file
        self.reason = ""

    def listen(self) -> None:
        """Installs the handlers; call once, from the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)

    def asked(self) -> bool:
        """Whether this rank was asked. A look at the stop file costs about 2 µs."""
        if not self.reason and self._file and os.path.exists(self._file):
            self.reason = "stop file"
        return bool(self.reason)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name
