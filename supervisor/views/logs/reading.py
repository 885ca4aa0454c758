"""Log positions as users and charts specify them, and what a view shows. Pure except for the local time zone."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from supervisor.run.state import RunState
from supervisor.views.logs.merge import Row
from supervisor.views.logs.query import Query
from supervisor.views.logs.sources import LogRef, NodeLogs

_TIME = re.compile(r"(?:(\d{4})-(\d\d?)-(\d\d?)[ T])?(\d\d?):(\d\d)(?::(\d\d))?")
_STEP = re.compile(r"step (\d[\d ,]*)")


# -- places ---------------------------------------------------------------------------------------------


class LogAt(msgspec.Struct, frozen=True):
    """A position in the logs. If every field is None, the view follows the latest lines.

    Attributes:
        attempt: attempt number, from 1, or None for the latest.
        step: training step of the line.
        t: wall time in seconds, used if no line has that step.
        is_any_day: whether `t` is only a time of day; the latest day on which it occurs is used.
        path: the file, or None for the one under the cursor. `line` (from 1) or `offset` (in bytes) is a position in it.
        text: text of the line in a verdict.
    """

    attempt: int | None = None
    step: float | None = None
    t: float | None = None
    is_any_day: bool = False
    path: str | None = None
    line: int | None = None
    offset: int | None = None
    text: str = ""


def log_facts(state: RunState, nodes: Sequence[NodeLogs] = ()) -> list[tuple[object, ...]]:
    """Return the state that determines which logs exist, when they were written, and whether they are still growing."""
    return [
        (number, each.is_over, a.number, a.ranks, a.started_t, a.ended_t, a.quiet_since)
        for number, each in [(None, state), *((node.number, node.state) for node in nodes[1:])]
        for a in each.attempts
    ]


# -- answers --------------------------------------------------------------------------------------------


class Tally(msgspec.Struct, frozen=True):
    """The number of matches so far. `ordinal` is 1-based, or None until known. If `at_match` is true, a match is visible."""

    found: int
    done_ratio: float
    ordinal: int | None = None
    at_match: bool = False


class Page(msgspec.Struct, frozen=True):
    """The page currently shown.

    Attributes:
        rows: as many rows as fit, or fewer if the logs are shorter.
        logs: the logs being read, in the order of `Row.place`.
        cursor: the row that was jumped to; `jump` counts the jumps.
        following: whether new lines move the page; `grows` says whether more may arrive.
        cause: the row of a verdict's line; `at_cause` means that the page stays there.
        attempt: number of the attempt being shown; `attempts` is the total.
        merged_by: "" for one log, else "time", "arrival", or "arrival (estimated)" if some times are unknown.
        numbers: each row's line number (from 1), if there is a single log and it has been counted.
        line_count: lines in all logs, or None if not counted.
        below: matching lines below the page, or None if not counted.
        place_ratio: fraction of the bytes above the bottom of the page.
        shown: how many lines match the query, or None without a query.
        search: search matches, or None without a search.
        last_lines: the last line from each rank.
        nodes: in a multi-node run, the nodes whose logs are read, out of `node_count`.
        empty_why: why the page has no rows.
        ranks: the writers that appear in these logs.
        alone: the log that the query includes, if there is exactly one.
    """

    rows: tuple[Row, ...]
    logs: tuple[LogRef, ...]
    cursor: int | None
    jump: int
    following: bool
    cause: int | None
    at_cause: bool
    attempt: int
    attempts: int
    query: Query
    searched: Query
    merged_by: str
    numbers: tuple[int | None, ...]
    line_count: int | None
    below: int | None
    place_ratio: float
    size_bytes: int
    shown: Tally | None
    search: Tally | None
    last_lines: Mapping[str, str]
    empty_why: str
    nodes: tuple[int, ...]
    node_count: int
    ranks: tuple[str, ...]
    alone: int | None
    grows: bool

    @property
    def key_facts(self) -> tuple[object, ...]:
        """The values that determine what the keys do."""
        return self.following, self.grows

    def nodes_of(self, row: Row) -> tuple[int, ...]:
        """Return the nodes that wrote a row; empty in a single-node run."""
        found = {self.logs[index].node for index, _ in row.parts}
        return tuple(sorted(node for node in found if node is not None))

    def place_of(self, row: Row) -> LogAt:
        """Return the position of a row's line."""
        index, line = row.parts[0]
        log = self.logs[index]
        return LogAt(attempt=log.attempt, path=str(log.path), offset=line.offset)


class Remark(msgspec.Struct, frozen=True):
    """A one-line message to the user. `good` is None while work is in progress and False if something went wrong."""

    text: str
    good: bool | None = None


class Copied(msgspec.Struct, frozen=True):
    """The text of the requested rows, and how many lines it has."""

    text: str
    lines: int


Answer: TypeAlias = Page | Remark | Copied | LogAt


# -- what a user types after a colon -------------------------------------------------------------------------


class BadJumpError(ValueError):
    """The text is not a valid log position. The message is a single line that shows the accepted formats."""


def parse_jump(typed: str) -> LogAt:
    """Parse ``812``, ``step 1200``, ``14:52``, ``14:52:10`` or ``2026-11-21 14:52``. Times are local.

    Raises:
        BadJumpError: the text has any other format.
    """
    text = typed.strip().removeprefix(":")
    if (digits := text.replace(" ", "").replace(",", "")).isdecimal():
        return LogAt(line=max(int(digits), 1))
    if (step := _STEP.fullmatch(text)) is not None:
        return LogAt(step=float(re.sub("[ ,]", "", step[1])))
    match = _TIME.fullmatch(text)
    if match is None:
        raise BadJumpError(
            f"{text}: give a line's number, a step such as step 1200, or a time such as 14:52 or 2026-11-21 14:52"
        )
    year, month, day, hour, minute, second = (int(part) if part else None for part in match.groups())
    today = datetime.fromtimestamp(time.time())  # noqa: DTZ006 - users type local time
    try:
        when = today.replace(hour=hour or 0, minute=minute or 0, second=second or 0, microsecond=0)
        if year is not None and month is not None and day is not None:
            when = when.replace(year=year, month=month, day=day)
    except ValueError as error:
        raise BadJumpError(f"{text}: {error}") from error
    return LogAt(t=when.timestamp(), is_any_day=year is None)
