"""What opens the log screen at a place, and what it gives back when a line is to be seen on a chart (pure)."""

from __future__ import annotations

import msgspec


class LogAt(msgspec.Struct, frozen=True):
    """A place in the logs, as far as it is known. All None: the newest lines, followed.

    Attributes:
        attempt: counted from 1; None: the newest.
        who: the rank as text, or "agent".
        step: the training step whose line is wanted.
        t: wall time in seconds, where there is no line of that step.
        path: the file; `line` (from 1) or `offset` (in bytes) is a place within it.
    """

    attempt: int | None = None
    who: str | None = None
    step: float | None = None
    t: float | None = None
    path: str | None = None
    line: int | None = None
    offset: int | None = None


class LogPoint(msgspec.Struct, frozen=True):
    """A line as a chart knows it: the step that it names, or the time at which it was most likely written."""

    attempt: int
    who: str | None
    step: float | None
    t: float | None
