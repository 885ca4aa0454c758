"""SIGCONT without SIGTSTP before it: a debugger's or `kill -STOP`'s freeze, which Textual takes for `fg`.

Textual (8.x, drivers/linux_driver.py) answers every SIGCONT by entering its screen again: a second thread reads the
keys, leaving waits for the first one for ever, and the terminal's own settings are forgotten.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType


class Continuing:
    """Passes SIGCONT on to Textual only when SIGTSTP came before it.

    Must be made in the main thread, after Textual's own handlers were set.

    Args:
        back: called, in a signal handler, when the process goes on as it was: the screen may be another's.
    """

    def __init__(self, back: Callable[[], object]) -> None:
        self._back = back
        self._left = False
        self._stop = signal.getsignal(signal.SIGTSTP)
        self._go_on = signal.getsignal(signal.SIGCONT)
        signal.signal(signal.SIGTSTP, self._stopped)
        signal.signal(signal.SIGCONT, self._continued)

    def close(self) -> None:
        """Give the signals back."""
        signal.signal(signal.SIGTSTP, self._stop)
        signal.signal(signal.SIGCONT, self._go_on)

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        self._left = True
        if callable(self._stop):
            self._stop(number, frame)

    def _continued(self, number: int, frame: FrameType | None) -> None:
        if not self._left:
            self._back()
            return
        # `bg` continues too, and Textual then stops again: `fg` is still to come.
        self._left = not _in_front()
        if callable(self._go_on):
            self._go_on(number, frame)


def _in_front() -> bool:
    try:
        return os.tcgetpgrp(sys.__stdin__.fileno()) == os.getpgrp() if sys.__stdin__ else True
    except OSError:
        return True
