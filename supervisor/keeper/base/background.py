"""Threads that run alongside the keeper's loop: either one polled task at a time, or a task that its caller waits for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

JOIN_S = 11.0
"""The longest a round of stack dumps should take: 5 s for py-spy and 3 s for NCCL, plus slack for a busy machine."""

log = logging.getLogger("stoker.keeper")

Result = TypeVar("Result")
Found = TypeVar("Found")
Answer = TypeVar("Answer")


class Background(Generic[Result]):
    """Runs one task at a time in a thread. `poll` returns the result once it is available.

    Tasks should limit their own duration. The thread is a daemon because it talks to other processes and to
    drivers, and a call into a driver whose GPU is gone may never return.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._result: list[Result] = []

    @property
    def busy(self) -> bool:
        """Whether a task is running or its result has not been fetched yet."""
        return self._thread is not None

    @property
    def working(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def is_idle(self) -> bool:
        """Return the opposite of `busy`. This is a method, not a property, because `poll` changes the answer between checks."""
        return self._thread is None

    def start(self, work: Callable[[], Result]) -> None:
        """Start a task unless one is in progress."""
        if self._thread is None:
            self._result.clear()
            self._thread = threading.Thread(target=self._do, args=(work,), name=self._name, daemon=True)
            self._thread.start()

    def poll(self, wait_s: float = 0.0) -> Result | None:
        """Return the result, but only once. Return None if it is not available within `wait_s` or the task failed."""
        if self._thread is None:
            return None
        if wait_s > 0:
            self._thread.join(wait_s)
        if self._thread.is_alive():
            return None
        self._thread.join()
        self._thread = None
        return self._result.pop() if self._result else None

    def close(self, wait_s: float = JOIN_S) -> None:
        """Wait up to `wait_s` for the thread to finish."""
        if self._thread is not None:
            self._thread.join(wait_s)

    def _do(self, work: Callable[[], Result]) -> None:
        try:
            self._result.append(work())
        except Exception:  # like a sensor: whatever happens to it, training and the keeper continue
            log.exception("%s failed", self._name)


class BackgroundTask(Generic[Found, Answer]):
    """A task that starts immediately in its own thread. The polling thread turns its result into the answer.

    The task should limit its own duration. The thread is a daemon because it inspects other processes.

    Args:
        work: runs in the thread.
        finish: computes the answer, once, in the polling thread, so it may write to the journal.
    """

    def __init__(self, name: str, work: Callable[[], Found], finish: Callable[[Found], Answer]) -> None:
        self._finish = finish
        self._answer: list[Answer | OSError] = []
        self._doing: Background[tuple[Found] | OSError] = Background(name)
        self._doing.start(lambda: _or_error(lambda: (work(),)))

    @property
    def working(self) -> bool:
        """Whether the thread is running."""
        return self._doing.working

    def poll(self) -> Answer | None:
        """Return the answer, or None while the thread is running.

        Raises:
            OSError: the task failed; raised on every call.
        """
        if self.working:
            return None
        if not self._answer:
            self._answer.append(self._answered(self._doing.poll()))
        answer = self._answer[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def close(self, wait_s: float) -> None:
        """Wait up to `wait_s` for the thread to finish."""
        self._doing.close(wait_s)

    def _answered(self, found: tuple[Found] | OSError | None) -> Answer | OSError:
        if found is None:
            return OSError("that failed: see keeper.log")
        return found if isinstance(found, OSError) else _or_error(lambda: self._finish(*found))


def within(limit_s: float, work: Callable[[], Result], name: str) -> Result | None:
    """Return the result of `work`, or None after `limit_s`. If a driver never returns, its thread is lost."""
    asked: Background[Result] = Background(name)
    asked.start(work)
    return asked.poll(limit_s)


def _or_error(work: Callable[[], Answer]) -> Answer | OSError:
    try:
        return work()
    except OSError as error:
        return error
