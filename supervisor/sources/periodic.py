"""A thread that samples periodically until the stop event is set."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class PeriodicSampler(ABC):
    """Calls `sample` until the stop event is set or there is nothing to sample.

    The thread is a daemon, because a call into a wedged driver, or statvfs(2) on a dead network filesystem,
    never returns and must not keep the process alive.
    """

    def __init__(self, name: str, stop: threading.Event) -> None:
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def sample(self) -> float | None:
        """Take one round of samples. Return the seconds until the next round, or None to stop the thread."""

    def close(self) -> None:  # noqa: B027 - most samplers have nothing open
        """Close resources. Called on the sampler thread as it exits."""

    def start(self) -> None:
        """Start sampling."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to exit (set the stop event first). Return False if it did not exit in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            wait_s: float | None = 0.0
            while wait_s is not None and not self._stop.wait(wait_s):
                wait_s = self.sample()
        finally:
            self.close()
