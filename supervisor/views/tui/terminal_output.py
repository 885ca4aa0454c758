"""Writing to a terminal, which may go away, and which stderr may not be."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.driver import Driver


class SurvivingFile:
    """A terminal's file that takes what is written also once the terminal is gone.

    Textual (8.x, drivers/_writer_thread.py) writes in a thread, through a queue of 30 pieces. When an ssh line dropped, a write
    failed, the thread ended, and the app waited for ever for room in the queue: the process stayed.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write, or drop what nobody can see."""
        try:
            return self._file.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Hand on what was written, or drop it."""
        try:
            self._file.flush()
        except OSError:
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def surviving(driver: type[Driver]) -> type[Driver]:
    """The driver, writing through such a file."""

    class Surviving(driver):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if (file := getattr(self, "_file", None)) is not None:
                self._file = SurvivingFile(file)

    return Surviving


@contextmanager
def terminal_on_stderr() -> Iterator[None]:
    """Textual draws on descriptor 2. Under `2>err.log`, that becomes stdout's terminal while the app runs; log records still go to the file."""
    if os.isatty(2):
        yield
        return
    kept = os.fdopen(os.dup(2), "w", errors="backslashreplace")
    log = logging.StreamHandler(kept)
    logging.getLogger().addHandler(log)
    os.dup2(1, 2)
    try:
        yield
    finally:
        os.dup2(kept.fileno(), 2)
        logging.getLogger().removeHandler(log)
        kept.close()
