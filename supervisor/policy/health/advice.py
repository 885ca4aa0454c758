"""Advice while a run is healthy, and how often it bears repeating."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S = 1800.0
LONGEST_PAUSE_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing worth saying. `code` names its kind; `rank` whose it is, None for the job's."""

    code: str
    text: str
    rank: int | None = None


class Quota:
    """Says whether a kind of advice may be said again: after half an hour, then an hour, and so on, doubling."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def allows(self, code: str, now: float) -> bool:
        """True if `code` may be said at `now` (monotonic seconds); it then counts as said."""
        known = self._last.get(code)
        if known is None:
            self._last[code] = (now, FIRST_PAUSE_S)
            return True
        last, pause = known
        if now - last < pause:
            return False
        self._last[code] = (now, min(2 * pause, LONGEST_PAUSE_S))
        return True

    def said(self, code: str, now: float) -> None:
        """Something was said before this process lived."""
        self._last[code] = (now, FIRST_PAUSE_S)
