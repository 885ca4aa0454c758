"""Something done beside the keeper's loop for somebody who waits for the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from supervisor.keeper.background import Background

Found = TypeVar("Found")
Answer = TypeVar("Answer")


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
            OSError: it could not be done; told at every call.
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


def _or_error(work: Callable[[], Answer]) -> Answer | OSError:
    try:
        return work()
    except OSError as error:
        return error
