"""A view's position in the logs. The page moves by rows, lines, times, steps and matches. Not thread-safe."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

from supervisor.run.paths import NodePaths
from supervisor.run.state import RunState
from supervisor.text.redact import redact_lines
from supervisor.views.format import ranges
from supervisor.views.logs import reading as lc
from supervisor.views.logs.file import TextLine
from supervisor.views.logs.merge import Place, Row, rows_before, rows_from
from supervisor.views.logs.open_logs import NothingThereError, OpenLogs, name_of
from supervisor.views.logs.query import Query
from supervisor.views.logs.sources import AGENT, NodeLogs, split_rank
from supervisor.views.logs.stream import Stream

# When a page shows a failure, this share of its rows is below the line where the failure began.
BELOW_CAUSE_SHARE = 1 / 3
TRACEBACK_ROWS = 24
# How many lines at the end of a log to search for the line in a verdict.
CAUSE_LINES = 2000
# Terminals pass at most this many characters to the clipboard.
COPY_CHARS = 500_000
# Search at most this many lines for a step, going down.
STEP_LINES = 200
# Search at most this far above a line for its step.
STEP_LINES_BACK = 60
# Reported when the search wraps around.
ONLY_MATCH = "the only match"
PAST_OLDEST = "past the oldest match: continued at the newest"
PAST_NEWEST = "past the newest match: continued at the oldest"
FILTERED_OUT = "no line matches; f changes the filter, Esc clears it"

# A line of the logs: the index of its log, and the offset of the line there.
At = tuple[int, int]


class LogViewport:
    """The visible page of a view.

    Args:
        node: the node's directory, which lists the run's logs.
        check: called periodically during long operations; raises an exception to abort.
    """

    def __init__(self, node: NodePaths, check: Callable[[], None]) -> None:
        self.height = 1
        self.logs = OpenLogs(node, check)
        self._check = check
        self._place: Place = ()
        self._following = True
        self._cursor: At | None = None  # the target of the newest jump
        self._is_match = False  # whether the target is a match of the search
        self._jump = 0
        self._cause: lc.LogAt | None = None
        self._cause_at: At | None = None
        self._cause_passed = False
        self._notes: list[str] = []  # messages about the last move

    # -- the logs ----------------------------------------------------------------------------------------

    def update(
        self, state: RunState, recorded_t: float | None = None, nodes: tuple[NodeLogs, ...] = ()
    ) -> None:
        """Update the run's state. During a replay, pass the state at the current time in the recording."""
        before = [stream.ref for stream in self.logs.streams]
        self._place = self.logs.update(state, recorded_t, self._place, nodes, keep=not self._following)
        after = [stream.ref for stream in self.logs.streams]
        if not {ref.path for ref in before} & {ref.path for ref in after}:
            self._following = True
        if before != after:
            self._cursor = self._cause_at = None

    def refresh(self) -> tuple[bool, list[str]]:
        """Check every log. Return whether anything changed and any messages for the user."""
        changed, notes, place = self.logs.refresh(self._place)
        if place != self._place:
            self._place, self._cursor, self._cause_at = place, None, None
        moved, self._notes = self._notes, []
        return changed, [*moved, *notes]

    @property
    def is_moved(self) -> bool:
        """Whether the user has moved the page, in which case the line numbers around it matter."""
        return not self._following

    def resize(self, height: int, cursor: Row | None = None) -> None:
        """Change the number of rows, keeping the row under the cursor visible."""
        self.height = max(height, 1)
        if cursor is not None and not self._following and len(cursor.place) == len(self.logs.streams):
            rows = self._rows_from(self._place, self.height)
            if _row_of(rows, _at(cursor)) is None and cursor.place > self._place:
                self._place = self._above(place_after(cursor), self.height)

    # -- the page ----------------------------------------------------------------------------------------

    def page(self) -> lc.Page:
        """Return the current page."""
        logs, streams = self.logs, self.logs.streams
        rows, at_cause = self._rows()
        if rows:
            self._place = rows[0].place
        after = place_after(rows[-1]) if rows else self._place
        filled = [stream for stream in logs.included if stream.file.size]
        one = filled[0] if len(filled) == 1 else None
        size = sum(logs.ends)
        cursor = _row_of(rows, self._cursor)
        found_at = rows[cursor].place if cursor is not None and self._is_match else None
        return lc.Page(
            rows=tuple(rows),
            logs=tuple(stream.ref for stream in streams),
            cursor=cursor,
            jump=self._jump,
            following=self._following,
            grows=logs.grows,
            cause=_row_of(rows, self._cause_at),
            at_cause=at_cause,
            attempt=logs.number,
            attempts=len(logs.state.attempts),
            query=logs.query,
            searched=logs.searched,
            merged_by=_merged_by(filled),
            numbers=tuple(_number_of(one, row) for row in rows) if one is not None else (),
            line_count=logs.line_count,
            below=None if self._following and not at_cause else logs.below(after),
            place_ratio=min(sum(after) / size, 1.0) if size else 1.0,
            size_bytes=size,
            shown=logs.shown(),
            search=logs.found(found_at) if logs.searched else None,
            last_lines=self._last_lines(),
            empty_why=self._why_empty() if not rows else "",
            nodes=logs.nodes_read if logs.node_count else (),
            node_count=logs.node_count,
            ranks=logs.ranks(),
            alone=streams.index(one) if one is not None else None,
        )

    def _rows(self) -> tuple[list[Row], bool]:
        """Return the rows of the page and whether it is being held at a failure."""
        if not self._following:
            return self._rows_from(self._place, self.height), False
        rows = rows_before(self.logs.streams, self.logs.ends, self.height)
        held = self._rows_at_cause(rows)
        return held or rows, bool(held)

    def _rows_from(self, place: Place, most: int) -> list[Row]:
        """Return a page that starts at `place`, filled up with rows from above if too few follow."""
        rows = list(itertools.islice(rows_from(self.logs.streams, place), most))
        if len(rows) < self.height:
            rows = rows_before(self.logs.streams, place, self.height - len(rows)) + rows
        return rows

    # -- the line in a verdict -----------------------------------------------------------------------------

    def keep_cause(self, cause: lc.LogAt | None) -> None:
        """Keep this line visible while following the logs, until the user moves. None releases it."""
        if cause != self._cause:
            self._cause, self._cause_at, self._cause_passed = cause, None, False

    def _rows_at_cause(self, newest: Sequence[Row]) -> list[Row]:
        """Return the page around the cause, or an empty list if the latest rows already show it."""
        if self._cause is None or self._cause_passed:
            return []
        self._cause_at = self._cause_at or self._find_cause(self._cause)
        if self._cause_at is None or _row_of(newest, self._cause_at) is not None:
            return []
        index, offset = self._cause_at
        line = next(self.logs.streams[index].file.forward(offset), None)
        if line is None:
            return []
        below = max(1, int(self.height * BELOW_CAUSE_SHARE))
        place = self._beside(index, line)
        # From above it, because a traceback is in one piece only if it is read from its beginning.
        above = rows_before(self.logs.streams, place, self.height + TRACEBACK_ROWS)
        start = above[0].place if above else place
        rows = list(itertools.islice(rows_from(self.logs.streams, start), 2 * len(above) + self.height))
        number = _row_of(rows, self._cause_at)
        # The query may exclude it.
        return rows[: max(number + 1 + below, self.height)][-self.height :] if number is not None else []

    def _find_cause(self, cause: lc.LogAt) -> At | None:
        """Find the cause in its file by searching the tail for its text, or else by line number."""
        index, text = self.logs.index_of(cause.path or ""), cause.text.strip().rstrip("…")
        if index is None or cause.attempt != self.logs.number:
            return None
        file = self.logs.streams[index].file
        for line in itertools.islice(file.backward(file.size), CAUSE_LINES):
            if text and text in line.text:
                return index, line.offset
        offset = file.offset_of((cause.line or 1) - 1)
        return (index, offset) if offset is not None else None

    # -- moving --------------------------------------------------------------------------------------------

    def _stand(self) -> None:
        self._following, self._cause_passed = False, True

    def _stand_on(self, index: int, offset: int) -> None:
        self._stand()
        self._cursor, self._is_match = (index, offset), False
        self._jump += 1

    def scroll(self, rows: int) -> None:
        """Scroll by `rows`. Reaching the end resumes following."""
        if rows < 0:
            self._stand()
            self._place = self._above(self._place, -rows)
        elif not self._following or (self._cause_at is not None and not self._cause_passed):
            self._stand()
            below = rows_from(self.logs.streams, self._place)
            ahead = list(itertools.islice(below, rows + self.height + 1))
            if len(ahead) <= rows + self.height:
                self._following, self._cursor = True, None
            else:
                self._place = ahead[rows].place

    def to_start(self) -> None:
        """Go to the first line."""
        self._place = (0,) * len(self.logs.streams)
        first = next(rows_from(self.logs.streams, self._place), None)
        if first is not None:
            self._stand_on(*_at(first))

    def follow(self, on: bool = True) -> None:
        """Follow the latest line of the latest attempt, or freeze the page."""
        self._following, self._cause_passed = on, True
        if on:
            self._cursor = None
            self.to_attempt(lambda: self.logs.choose_attempt(None))

    def to_place(self, at: lc.LogAt, cursor: Row | None = None) -> None:
        """Go to a position requested by the user, a chart, a verdict or the dashboard. `cursor` is the row under the cursor."""
        if at.attempt is not None and at.attempt != self.logs.number:
            self.to_attempt(lambda: self.logs.choose_attempt(at.attempt))
        self.refresh()
        if at.path is not None or at.line is not None:
            index = self.logs.index_of(at.path) if at.path is not None else _at(cursor)[0] if cursor else 0
            if index is None or index >= len(self.logs.streams):
                raise NothingThereError(f"{at.path or 'that'} is no log of attempt {self.logs.number}")
            self._go(index, at.offset if at.line is None else self._offset_of(index, at.line))
            return
        found = self._step_line(at.step) if at.step is not None else None
        if found is not None and (found[2] == at.step or at.t is None):
            self._go(found[0], found[1].offset)
        elif at.t is not None:
            self._to_time(at.t, is_any_day=at.is_any_day)
        elif at.step is not None:
            raise NothingThereError(f"no line names step {at.step:g} or a later one")

    def _offset_of(self, index: int, number: int) -> int:
        """Return the offset of line `number` (from 1), first counting the lines above it if necessary."""
        file = self.logs.streams[index].file
        while (offset := file.offset_of(number - 1)) is None and file.count():
            self._check()
        if offset is None:
            raise NothingThereError(f"{name_of(self.logs.streams[index])} has {file.line_count} lines")
        return offset

    def _to_time(self, t: float, *, is_any_day: bool) -> None:
        """Go to the first lines at `t` (estimated for logs without times). If `is_any_day`, use that time on the latest day."""
        filled = [stream for stream in self.logs.included if stream.file.size]
        if is_any_day and filled:
            newest = max(stream.written_t for stream in filled)
            t -= 86400 * max(0, -int((newest - t) // 86400))
        if not any(stream.arrivals is not None or stream.is_stamped for stream in filled):
            if not any(0 < stream.offset_at(t) < stream.file.size for stream in filled):
                raise NothingThereError("the log has no times: give a line's number")
            self._notes.append("the log has no times: this is about where it stood then")
        place = tuple(s.offset_at(t) if s in filled else 0 for s in self.logs.streams)
        first = next(rows_from(self.logs.streams, place), None)
        if first is None:
            raise NothingThereError(f"no line is as late as {time.strftime('%H:%M:%S', time.localtime(t))}")
        self._stand_on(*_at(first))
        self._place = self._above(first.place, self.height // 2)

    def other_attempt(self, way: int) -> None:
        """Go to the latest line of the previous (-1) or next (1) attempt."""
        self.to_attempt(lambda: self.logs.other_attempt(way))

    def to_attempt(self, choose: Callable[[], None]) -> None:
        """Switch to another attempt and go to its latest line."""
        before = self.logs.number
        choose()
        if self.logs.number != before:
            self._place = (0,) * len(self.logs.streams)
            self._following, self._cursor, self._cause_at = True, None, None

    def _step_line(self, step: float) -> tuple[int, TextLine, float] | None:
        """Find the log and line of a step or, failing that, of the nearest later step. Steps only increase, so bisection works."""
        nearest: tuple[int, TextLine, float] | None = None
        for index, stream in enumerate(self.logs.streams):
            file = stream.file
            low, high = 0, file.size
            while low < high:
                self._check()
                middle = file.line_start((low + high) // 2)
                line, at = next(_steps_from(stream, middle), (None, math.inf))
                if line is not None and at < step and line.offset < high:
                    low = max(line.end, low + 1)
                    continue
                high = middle
                if line is not None and at >= step and (nearest is None or at < nearest[2]):
                    nearest = index, line, at
        return nearest

    def _go(self, index: int, offset: int | None) -> None:
        """Go to a line of one log, or to the nearest visible line, and move the other logs to the same time."""
        line = next(self.logs.streams[index].file.forward(offset), None) if offset is not None else None
        if line is None:
            raise NothingThereError("that line is not there any more")
        if not self._go_near(index, line):
            raise NothingThereError(FILTERED_OUT)
        if self._cursor != (index, line.offset):
            self._notes.append("that line is filtered out: here is the nearest that is kept")

    def _go_near(self, index: int, line: TextLine) -> bool:
        """Go to a line. If the query hides it, go to the next visible line, or else the last one before. Return False if none."""
        streams = self.logs.streams
        if next(streams[index].forward(line.offset), None) != line:
            place = self._beside(index, line, in_order=False)
            row = next(rows_from(streams, place), None) or next(iter(rows_before(streams, place, 1)), None)
            if row is None:
                return False
            index, line = row.parts[0]
        self._stand_on(index, line.offset)
        self._place = self._above(self._beside(index, line), self.height // 2)
        return True

    def _beside(self, index: int, line: TextLine, *, in_order: bool = True) -> Place:
        """Return a line's position in its log, with the other logs at the same time. If `in_order`, log order breaks ties."""
        stream = self.logs.streams[index]
        t = stream.time_of(line)
        later = math.nextafter(t, math.inf) if in_order else t
        return tuple(
            line.offset if i == index else min(other.offset_at(t if i > index else later), other.file.size)
            for i, other in enumerate(self.logs.streams)
        )

    def _above(self, place: Place, rows: int) -> Place:
        """Return the position `rows` rows further up."""
        above = rows_before(self.logs.streams, place, rows)
        return above[0].place if above else place

    # -- searching ---------------------------------------------------------------------------------------

    def show(self, query: Query, cursor: Row | None = None) -> None:
        """Filter the lines, keeping the cursor's line in view. If it is now hidden, go to the next visible line in time."""
        before = self.logs.streams
        self._place = self.logs.filter_by(query, self._place)
        if self.logs.streams is not before:  # the query may have opened logs of other nodes
            self._following, self._cursor, self._cause_at = True, None, None
        if cursor is None or self._following or len(cursor.place) != len(self.logs.streams):
            return
        if not self._go_near(*cursor.parts[0]):
            self._place, self._cursor = self._beside(*cursor.parts[0]), None

    def find(self, query: Query, cursor: Row | None) -> None:
        """Search up from the cursor, or from the end if there is no cursor. If nothing above matches, search down.

        If nothing matches, return to where the search began, since earlier keystrokes may have moved the page.
        """
        self.logs.search(query)
        self._cursor = None  # earlier matches do not count for this search
        if not query:
            return
        found = self._nearest_match(place_after(cursor) if cursor is not None else self.logs.ends, -1)
        if found is None and cursor is not None:
            found = self._nearest_match(cursor.place, 1)
        if found is not None:
            self._go_to_match(found)
            return
        if cursor is None:
            self.follow()
        else:
            self._go(*_at(cursor))
        raise NothingThereError("not found")

    def match(self, cursor: Row | None, way: int) -> None:
        """Go to the next match up (-1) or down (1) from a row or from the last match, wrapping around at the end."""
        if cursor is None and self._is_match:
            rows = self._rows_from(self._place, self.height)
            cursor = next((row for row in rows if _row_of([row], self._cursor) is not None), None)
        place = self.logs.ends
        if cursor is not None:
            place = place_after(cursor) if way > 0 else cursor.place
        found = self._nearest_match(place, way)
        if found is None:
            found = self._nearest_match(self.logs.ends if way < 0 else (0,) * len(self.logs.streams), way)
            if found is None:
                raise NothingThereError("not found")
            is_alone = cursor is not None and _row_of([cursor], found) is not None
            self._notes.append(ONLY_MATCH if is_alone else PAST_OLDEST if way < 0 else PAST_NEWEST)
        self._go_to_match(found)

    def _go_to_match(self, found: At) -> None:
        self._go(*found)
        self._is_match = True

    def _nearest_match(self, place: Place, way: int) -> At | None:
        """Return the match nearest to `place`, searching down (1) or up (-1)."""
        best: tuple[tuple[float, int], At] | None = None
        for i, finder in enumerate(self.logs.finders):
            line = next(finder.forward(place[i]) if way > 0 else finder.backward(place[i]), None)
            if line is not None:
                nearness = (way * self.logs.streams[i].order(line), i)
                best = min(best, (nearness, (i, line.offset))) if best else (nearness, (i, line.offset))
        return best[1] if best is not None else None

    # -- copies ------------------------------------------------------------------------------------------

    def copied(self, first: Row, last: Row) -> lc.Copied:
        """Copy the lines between two rows as displayed, without rank names or secrets."""
        first, last = sorted((first, last), key=lambda row: row.place)
        texts: list[str] = []
        size = 0
        rows = rows_from(self.logs.streams, first.place, stop=place_after(last))
        for row in rows:
            size += len(row.text) + 1
            if size > COPY_CHARS:
                break
            texts.append(row.text)
        return lc.Copied("\n".join(redact_lines(texts)), len(texts))

    def point(self, row: Row) -> lc.LogAt:
        """Return when a row was written, and its step or the step of the nearest line above that has one."""
        index, line = row.parts[0]
        stream = self.logs.streams[index]
        above = itertools.islice(stream.file.backward(line.offset), STEP_LINES_BACK)
        texts = itertools.chain([row.text], (split_rank(x.text, stream.ref.who)[1] for x in above))
        step = next((step for text in texts if (step := _step_of(text)) is not None), None)
        return lc.LogAt(attempt=stream.ref.attempt, step=step, t=stream.time_of(line))

    def _last_lines(self) -> dict[str, str]:
        """Return the latest line from each rank, regardless of the query."""
        newest: dict[str, tuple[float, str]] = {}
        for stream in self.logs.streams:
            for who, found in stream.last_lines().items():
                newest[who] = max(newest.get(who, found), found)
        return {who: text for who, (_, text) in newest.items()}

    def _why_empty(self) -> str:
        streams, query = self.logs.streams, self.logs.query
        if not any(stream.file.is_open for stream in streams):
            troubles = (s for s in streams if s.file.trouble and s.ref.who != AGENT)
            closed = next(troubles, None)
            return f"{name_of(closed)}: {closed.file.trouble}" if closed else "no log file has appeared yet"
        ranks = self.logs.ranks()
        if ranks and not query.is_by(*ranks, AGENT):
            there = f"rank{'s' if len(ranks) > 1 else ''} {ranges(tuple(map(int, ranks)))}"
            return f"this log has {there}; f changes the filter, Esc clears it"
        if query.nodes and all(stream.ref.node not in query.nodes for stream in streams):
            return f"there is no node {ranges(tuple(query.nodes))}; f changes the filter, Esc clears it"
        if not ranks and any(map(str.isdigit, query.who)):
            return "the lines name no ranks: filter by words instead; f changes the filter, Esc clears it"
        if query:
            return FILTERED_OUT
        return (
            "no log of a rank is known"
            if all(stream.ref.who == AGENT for stream in streams)
            else "the ranks have not written a line yet"
        )


def place_after(row: Row) -> Place:
    """Return the position where the next row starts."""
    ends = {i: line.end for i, line in row.parts}
    return tuple(ends.get(i, offset) for i, offset in enumerate(row.place))


def _at(row: Row) -> At:
    """Return the log index and line offset of a row."""
    index, line = row.parts[0]
    return index, line.offset


def _row_of(rows: Sequence[Row], at: At | None) -> int | None:
    """Return the index of the row that contains the line at this log and offset."""
    return next((n for n, row in enumerate(rows) if any((i, x.offset) == at for i, x in row.parts)), None)


def _number_of(stream: Stream, row: Row) -> int | None:
    """Return a row's line number (from 1), or None if lines have not been counted that far."""
    number = stream.file.number_at(row.parts[0][1].offset)
    return number + 1 if number is not None else None


def _merged_by(streams: Sequence[Stream]) -> str:
    """Return how the lines are ordered, including whether any times are estimates."""
    if len(streams) < 2:
        return ""
    if all(stream.arrivals is not None for stream in streams):
        return "arrival"
    return "time" if all(stream.is_stamped for stream in streams) else "arrival (estimated)"


def _steps_from(stream: Stream, offset: int) -> Iterator[tuple[TextLine, float]]:
    """Yield lines at or after `offset` that contain a step, along with the step. Looks only a few lines ahead."""
    for line in itertools.islice(stream.file.forward(offset), STEP_LINES):
        if (step := _step_of(split_rank(line.text, stream.ref.who)[1])) is not None:
            yield line, step


def _step_of(text: str) -> float | None:
    # Imported late, because it takes almost 1 MiB and serves only jumps between charts and lines.
    from supervisor.sources.metrics import MetricReader

    sample = MetricReader().feed(text)
    return sample.values.get("step") if sample is not None else None
