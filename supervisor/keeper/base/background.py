"""Work in a thread beside the keeper's loop: one piece at a time, polled, or a task whose answer somebody waits for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

JOIN_S = 11.0
"""More than a round of stacks may take: py-spy's 5 s, a busy machine, NCCL's 3 s."""

log = logging.getLogger("stoker.keeper")

Result = TypeVar("Result")
Found = TypeVar("Found")
Answer = TypeVar("Answer")


class Background(Generic[Result]):
    """Does one thing at a time in a thread; `poll` gives its result when it is there.

    What is done so should be bounded by itself; the thread is a daemon all the same, because it talks to others'
    processes and to drivers, and a call into a driver whose GPU has gone may never return.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._result: list[Result] = []

    @property
    def busy(self) -> bool:
        """Whether something is being done, or its result waits to be fetched."""
        return self._thread is not None

    @property
    def working(self) -> bool:
        """Whether the thread is at it."""
        return self._thread is not None and self._thread.is_alive()

    def is_idle(self) -> bool:
        """The opposite of `busy`, as a call: `poll` changes it between two looks."""
        return self._thread is None

    def start(self, work: Callable[[], Result]) -> None:
        """Begin; nothing happens while something is being done."""
        if self._thread is None:
            self._result.clear()
            self._thread = threading.Thread(target=self._do, args=(work,), name=self._name, daemon=True)
            self._thread.start()

    def poll(self, wait_s: float = 0.0) -> Result | None:
        """The result, once; None while it is not there within `wait_s`, or if it failed."""
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
        """Wait for the thread, but no longer than `wait_s`."""
        if self._thread is not None:
            self._thread.join(wait_s)

    def _do(self, work: Callable[[], Result]) -> None:
        try:
            self._result.append(work())
        except Exception:  # a sensor: whatever it meets, training and keeper continue without it
            log.exception("%s failed", self._name)


class BackgroundTask(Generic[Found, Answer]):
    """Begins at once, in a thread of its own; what it finds becomes the answer in the thread that asks for it.

    What is done so should be bounded by itself. The thread is a daemon all the same: it looks into others' processes.

    Args:
        work: done in the thread.
        finish: makes the answer, once, in the thread that polls: it may write the journal.
    """

    def __init__(self, name: str, work: Callable[[], Found], finish: Callable[[Found], Answer]) -> None:
        self._finish = finish
        self._answer: list[Answer | OSError] = []
        self._doing: Background[tuple[Found] | OSError] = Background(name)
        self._doing.start(lambda: _or_error(lambda: (work(),)))

    @property
    def working(self) -> bool:
        """Whether the thread is at it."""
        return self._doing.working

    def poll(self) -> Answer | None:
        """The answer; None while the thread is at it.

        Raises:
            OSError: it could not be done; raised at every call.
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
        """Wait for the thread, but no longer than `wait_s`."""
        self._doing.close(wait_s)

    def _answered(self, found: tuple[Found] | OSError | None) -> Answer | OSError:
        if found is None:
            return OSError("that failed: see keeper.log")
        return found if isinstance(found, OSError) else _or_error(lambda: self._finish(*found))


def within(limit_s: float, work: Callable[[], Result], name: str) -> Result | None:
    """What `work` gives, if it does within `limit_s`; else None. A driver that never answers costs one thread."""
    asked: Background[Result] = Background(name)
    asked.start(work)
    return asked.poll(limit_s)


def _or_error(work: Callable[[], Answer]) -> Answer | OSError:
    try:
        return work()
    except OSError as error:
        return error
