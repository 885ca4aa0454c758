"""Something done beside the keeper's loop for somebody who waits for the answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger("stoker.keeper")

Found = TypeVar("Found")
Answer = TypeVar("Answer")


class Errand(Generic[Found, Answer]):
    """Begins at once, in a thread of its own; what it finds becomes the answer in the thread that asks for it.

    What is done so should be bounded by itself. The thread is a daemon all the same: it looks into others' processes.

    Args:
        work: done in the thread.
        finish: makes the answer, once, in the thread that polls: it may write the journal.
    """

    def __init__(self, name: str, work: Callable[[], Found], finish: Callable[[Found], Answer]) -> None:
        self._work, self._finish = work, finish
        self._found: list[Found] = []
        self._answer: list[Answer] = []
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._do, name=name, daemon=True)
        self._thread.start()

    @property
    def working(self) -> bool:
        """Whether the thread is at it."""
        return self._thread.is_alive()

    def poll(self) -> Answer | None:
        """The answer; None while the thread is at it.

        Raises:
            OSError: it could not be done; told at every call.
        """
        if self._thread.is_alive():
            return None
        self._thread.join()
        if self._error is None and not self._answer:
            try:
                self._answer.append(self._finish(self._found[0]))
            except OSError as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def close(self, wait_s: float) -> None:
        """Wait for the thread, but no longer than `wait_s`."""
        self._thread.join(wait_s)

    def _do(self) -> None:
        try:
            self._found.append(self._work())
        except OSError as error:
            self._error = error
        except Exception:  # a sensor: whatever it meets, training and keeper go on without it
            log.exception("%s failed", self._thread.name)
            self._error = OSError("that failed: see keeper.log")
