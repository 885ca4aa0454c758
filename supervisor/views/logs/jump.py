"""Where a person wants to go: a line's number or a time, as typed after ``:`` (pure but for the local zone)."""

from __future__ import annotations

import re
import time
from datetime import datetime

from supervisor.views.logs.commands import ToLine, ToTime

_TIME = re.compile(r"(?:(\d{4})-(\d\d?)-(\d\d?)[ T])?(\d\d?):(\d\d)(?::(\d\d))?")


class BadJumpError(ValueError):
    """What was typed names no place; one line says what would."""


def parse_jump(typed: str, stream: int) -> ToLine | ToTime:
    """Read ``812``, ``14:52``, ``14:52:10`` or ``2026-11-21 14:52``; clock times are local.

    Args:
        typed: what stands after the colon.
        stream: the log whose lines are numbered.

    Raises:
        BadJumpError: it is neither.
    """
    text = typed.strip().removeprefix(":")
    if (digits := text.replace(" ", "").replace(",", "")).isdecimal():
        return ToLine(stream, max(int(digits), 1))
    match = _TIME.fullmatch(text)
    if match is None:
        raise BadJumpError(f"{text}: give a line's number, or a time such as 14:52 or 2026-11-21 14:52")
    year, month, day, hour, minute, second = (int(part) if part else None for part in match.groups())
    today = datetime.fromtimestamp(time.time())  # noqa: DTZ006 - what a person types is local time
    try:
        when = today.replace(hour=hour or 0, minute=minute or 0, second=second or 0, microsecond=0)
        if year is not None and month is not None and day is not None:
            when = when.replace(year=year, month=month, day=day)
    except ValueError as error:
        raise BadJumpError(f"{text}: {error}") from error
    return ToTime(when.timestamp(), has_day=year is not None)
