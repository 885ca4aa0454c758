"""Lets a supervisor ask this rank where it is: Python's faulthandler on SIGUSR2, into a file that it knows.

The handler is C and writes even while the interpreter waits in a collective. The file is ``stacks/<pid>.txt`` beside
the telemetry folder (docs/telemetry.md); without such a folder nothing is registered.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Mapping
from pathlib import Path


def answer_stacks(environ: Mapping[str, str]) -> None:
    """Registers the handler, if a supervisor told where to report. What cannot be written is left out."""
    telemetry = environ.get("STOKER_TELEMETRY_DIR", "")
    if not telemetry or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return
    folder = Path(telemetry).parent / "stacks"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Kept open for the life of the process: the handler writes to its descriptor.
        file = (folder / f"{os.getpid()}.txt").open("ab", buffering=0)
    except OSError:
        return
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)
