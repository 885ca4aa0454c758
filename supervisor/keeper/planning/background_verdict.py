"""When a verdict is made: at once where there is little to read, beside the keeper's loop where there is much.

A log of 600 MB takes a second to scan, on a busy machine ten: meanwhile a person may ask for something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from supervisor.diagnosis.scan.windows import LARGE_LOG_BYTES
from supervisor.keeper.base.background import Background
from supervisor.run.records import Verdict


class Judge(Protocol):
    """The verdict on an attempt from what it has left so far; not `whole`: of large logs only from both their ends."""

    def __call__(self, number: int, *, whole: bool) -> Verdict:
        """Make it."""
        ...


class BackgroundVerdict:
    """One verdict at a time. Used by the keeper's one thread.

    Args:
        judge: makes a verdict; also called in another thread.
        log_bytes: how much an attempt's logs hold.
        ready: whether the signatures are there: compiled afresh on a busy machine they take tens of seconds.
    """

    def __init__(self, judge: Judge, log_bytes: Callable[[int], int], ready: Callable[[], bool]) -> None:
        self._judge, self._log_bytes, self._ready = judge, log_bytes, ready
        self._making: Background[Verdict] = Background("stoker-verdict")
        self._wanted: tuple[int, bool] | None = None

    @property
    def busy(self) -> bool:
        """Whether one is being made beside the loop."""
        return self._making.busy

    def look(self, number: int, *, whole: bool) -> Verdict | None:
        """The verdict, once it is made; the first call begins with it. What was begun for another question ends first."""
        if self._making.busy:
            verdict, mine = self._making.poll(), self._wanted == (number, whole)
            if not self._making.is_idle() or not mine:
                return None
            # What failed beside the loop fails here too, where it is heard of.
            return verdict if verdict is not None else self.at_once(number, whole=whole)
        if self._ready() and self._log_bytes(number) <= LARGE_LOG_BYTES:
            return self.at_once(number, whole=whole)
        self._wanted = (number, whole)
        self._making.start(lambda: self._judge(number, whole=whole))
        return None

    def at_once(self, number: int, *, whole: bool = False) -> Verdict:
        """The verdict now, waited for."""
        return self._judge(number, whole=whole)
