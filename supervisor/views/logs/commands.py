"""What the log screen asks of the thread that reads for it, and what it gets back (pure)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from supervisor.run.state import RunState
from supervisor.views.logs.merge import Place, Row
from supervisor.views.logs.newest import LogRef
from supervisor.views.logs.place import LogAt, LogPoint
from supervisor.views.logs.query import Query


class Known(msgspec.Struct, frozen=True):
    """The run's state: which logs there are."""

    state: RunState


class Size(msgspec.Struct, frozen=True):
    """How many rows are in sight."""

    rows: int


class Scroll(msgspec.Struct, frozen=True):
    """So many rows down (up where negative)."""

    rows: int


class Start(msgspec.Struct, frozen=True):
    """The first line."""


class Follow(msgspec.Struct, frozen=True):
    """The newest line, and on with it; `on` False: stand still."""

    on: bool = True


class ToLine(msgspec.Struct, frozen=True):
    """Line `number`, from 1, of the log at `stream`."""

    stream: int
    number: int


class ToTime(msgspec.Struct, frozen=True):
    """The first lines at wall time `t`; without `has_day` of the newest day on which that clock time has been."""

    t: float
    has_day: bool = True


class ToPlace(msgspec.Struct, frozen=True):
    """What a chart, a verdict or the dashboard's pane points at."""

    at: LogAt


class Show(msgspec.Struct, frozen=True):
    """Only these lines; `cursor`: the row with the cursor, which stays in sight, None where the newest line is followed."""

    query: Query
    cursor: Row | None = None


class Fold(msgspec.Struct, frozen=True):
    """Open torchrun's own traceback, or make it one line again; `cursor`: the row with the cursor."""

    cursor: Row | None


class Attempt(msgspec.Struct, frozen=True):
    """The logs of another attempt: the one before (-1) or after (1)."""

    way: int


class Find(msgspec.Struct, frozen=True):
    """Search for this; no term: stop searching. The nearest match before `cursor` is shown."""

    query: Query
    cursor: Row | None


class Match(msgspec.Struct, frozen=True):
    """The next match from a row on, later (1) or earlier (-1)."""

    cursor: Row | None
    way: int


class Copy(msgspec.Struct, frozen=True):
    """The text of the rows from one to another."""

    first: Row
    last: Row


class Point(msgspec.Struct, frozen=True):
    """What a chart knows a row as."""

    row: Row


Wish: TypeAlias = (
    Known
    | Size
    | Scroll
    | Start
    | Follow
    | ToLine
    | ToTime
    | ToPlace
    | Show
    | Fold
    | Attempt
    | Find
    | Match
    | Copy
    | Point
)


class Tally(msgspec.Struct, frozen=True):
    """How often something was found so far. `ordinal` counts from 1; None: not known (yet)."""

    found: int
    done_ratio: float
    ordinal: int | None = None


class Page(msgspec.Struct, frozen=True):
    """What is to be seen.

    Attributes:
        made: counts the pages; of two the later one is right.
        rows: as many as fit, fewer where the logs end.
        logs: the logs that are read, in the order of `Row.place`.
        cursor: the row that was jumped to; `jump` counts the jumps.
        following: new lines move the page.
        attempt: whose logs these are; `attempts` how many there are.
        merged_by: "" for one log, else "time", "arrival", or both.
        numbers: of each row the number from 1 of its line, where there is one log and it is counted.
        line_count: all lines of the one log.
        place_ratio: how much of the bytes lies above the page's end.
        counted_ratio: how far the lines are counted.
        shown: how many lines the query lets through; None: no query.
        search: matches; None: no search.
    """

    made: int
    rows: tuple[Row, ...]
    logs: tuple[LogRef, ...]
    place: Place
    end: Place
    cursor: int | None
    jump: int
    following: bool
    attempt: int
    attempts: int
    query: Query
    searched: Query
    merged_by: str
    numbers: tuple[int | None, ...]
    line_count: int | None
    place_ratio: float
    counted_ratio: float
    size_bytes: int
    shown: Tally | None
    search: Tally | None
    empty_why: str = ""


class Said(msgspec.Struct, frozen=True):
    """One line for the person. `good`: None while it is going on, False for trouble."""

    text: str
    good: bool | None = None


class Copied(msgspec.Struct, frozen=True):
    """The text of the rows asked for; `lines` of them."""

    text: str
    lines: int


class Pointed(msgspec.Struct, frozen=True):
    """What a chart knows the row as."""

    point: LogPoint


# Moving on is read at once where it can be.
Move: TypeAlias = Scroll | Start | Follow
News: TypeAlias = Page | Said | Copied | Pointed
