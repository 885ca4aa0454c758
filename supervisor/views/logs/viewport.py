"""The place in the logs and what lies around it: which logs, which page. One thread uses it.

What moves the place is in `logwalk`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import assert_never

from supervisor.run.paths import NodePaths
from supervisor.run.state import RunState
from supervisor.views.logs import commands as lw
from supervisor.views.logs.clock import acquaint
from supervisor.views.logs.counter import Task
from supervisor.views.logs.file import Change, LogFile
from supervisor.views.logs.line_index import CHUNK_BYTES, Counts
from supervisor.views.logs.merge import Place, Row, rows_before, rows_from
from supervisor.views.logs.newest import logs_of
from supervisor.views.logs.query import Query
from supervisor.views.logs.stream import Stream

# What is read around a place for a page of it.
NEAR_BYTES = 1 << 16
# More logs are merged where a key is not kept waiting.
FEW_LOGS = 8


class NothingThereError(LookupError):
    """What was asked for is not to be found; one line says so."""


class LogViewport:
    """Where the screen stands in the logs of an attempt.

    Args:
        node: where the run's logs are listed.
        check: called now and then while something takes long; raises to give it up.
    """

    def __init__(self, node: NodePaths, check: Callable[[], None]) -> None:
        self.height = 1
        self.work_changed = False
        self.folds = True  # torchrun's own traceback is one line
        self._node = node
        self._check = check
        self._state = RunState()
        self._attempt: int | None = None  # None: the newest
        self._files: dict[str, LogFile] = {}
        self._streams: list[Stream] = []
        self._finders: list[Stream] = []
        self._lines: dict[str, Task] = {}
        self._shown: list[Task] = []
        self._found: list[Task] = []
        self._query, self._searched = Query(), Query()
        self._place: Place = ()
        self._following = True
        self._cursor: tuple[int, int] | None = None  # (log, offset) that was jumped to
        self._jump = self._made = 0
        self._on_match = False
        self._folders: set[str] = set()
        self._looked_t = 0.0
        self._asked: tuple[str, int] | None = None  # a line to go to once it is counted

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    # -- which logs ------------------------------------------------------------------------------------

    def know(self, state: RunState) -> None:
        """The run as it stands now."""
        self._state = state
        self._choose()

    def other_attempt(self, way: int) -> None:
        """Show the logs of the attempt before or after."""
        numbers = [attempt.number for attempt in self._state.attempts]
        if not numbers:
            return
        now = numbers.index(self._number()) if self._number() in numbers else len(numbers) - 1
        wanted = now + way
        if not 0 <= wanted < len(numbers):
            raise NothingThereError(f"attempt {numbers[now]} is the {'last' if way > 0 else 'first'}")
        self._go_to_attempt(numbers[wanted])

    def _go_to_attempt(self, number: int) -> None:
        newest = self._state.attempts[-1].number if self._state.attempts else None
        self._attempt = None if number == newest else number
        self._choose()

    def _number(self) -> int:
        if self._attempt is not None:
            return self._attempt
        return self._state.attempts[-1].number if self._state.attempts else 0

    def _choose(self) -> None:
        """Read the logs of the attempt; those that are read already keep their place."""
        view = next((a for a in self._state.attempts if a.number == self._number()), None)
        refs = list(logs_of(self._state, self._node, [view])) if view is not None else []
        # A log that has not been written yet is watched for, but is no source of lines.
        known = {stream.ref.path: stream for stream in self._streams}
        over_t = view.ended_t if view is not None else None
        if [stream.ref for stream in self._streams] == refs:
            acquaint([stream.clock for stream in self._streams], over_t)
            return
        before = {s.ref.path: at for s, at in zip(self._streams, self._place, strict=True)}
        same_attempt = any(ref.path in known for ref in refs)
        start_t = (view.started_t or view.planned_t) if view is not None else 0.0
        self._streams = []
        for ref in refs:
            stream = known.get(ref.path)
            if stream is None or stream.ref != ref:
                stream = Stream(ref, self._file(str(ref.path)), start_t, self._check)
                stream.ask(self._query)
            self._streams.append(stream)
        acquaint([stream.clock for stream in self._streams], over_t)
        self._place = tuple(before.get(ref.path, 0) for ref in refs)
        if not same_attempt:
            self._following, self._cursor = True, None
        self._plan()

    def _file(self, path: str) -> LogFile:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = LogFile(path)
            file.refresh()
            # What is written through a link is told of where the file lies.
            self._folders |= {os.path.dirname(path), os.path.dirname(os.path.realpath(path))}
        return file

    def new_folders(self) -> set[str]:
        """Folders to be watched from now on."""
        folders, self._folders = self._folders, set()
        return folders

    def _plan(self) -> None:
        """What has to be counted for these logs and queries."""
        self.work_changed = True
        loud = [stream for stream in self._streams if not stream.is_silent]
        for stream in loud:
            path = str(stream.ref.path)
            if path not in self._lines:
                self._lines[path] = Task(stream.ref, stream.file, counts=stream.file.newlines)
        thinned = any(not stream.is_whole for stream in loud)
        self._shown = [Task(s.ref, s.file, self._query) for s in loud] if thinned else []
        both = self._query & self._searched
        self._found = [Task(s.ref, s.file, both) for s in loud] if self._searched else []
        self._finders = []
        for stream in self._streams:
            finder = Stream(stream.ref, stream.file, 0.0, self._check)
            finder.ask(both)
            self._finders.append(finder)

    def tasks(self) -> tuple[Task, ...]:
        """What the counting thread should do, the most wanted first."""
        self.work_changed = False
        lines = [self._lines[str(s.ref.path)] for s in self._streams if str(s.ref.path) in self._lines]
        return (*self._found, *self._shown, *lines)

    @property
    def scanned_ratio(self) -> float:
        """How far the search is counted."""
        return _done(self._found or self._shown)

    def counts_matter(self) -> bool:
        """Numbers have changed: use them; whether the page shows any."""
        for stream in self._streams:
            stream.counts = _counts_for(self._shown, stream)
        for finder in self._finders:
            finder.counts = _counts_for(self._found, finder)
        return True

    # -- what became of them -----------------------------------------------------------------------------

    def refresh(self, now: float) -> tuple[bool, list[str]]:
        """Look at every log; whether something changed, and what a person should know of it."""
        changed, notes = False, []
        place = list(self._place)
        for i, stream in enumerate(self._streams):
            became = stream.file.refresh()
            if became is Change.SAME:
                continue
            changed = True
            if became is Change.GROWN:
                stream.grew(self._looked_t, now)
            elif became is Change.GONE:
                notes.append(f"{name_of(stream)} was removed; what was open is still shown")
            else:
                for one in (stream, self._finders[i]):
                    one.anew()
                if (task := self._lines.get(str(stream.ref.path))) is not None:
                    task.counts = stream.file.newlines
                place[i] = 0
                self._cursor = None
                notes.append(f"{name_of(stream)} was cut or replaced; it is read anew")
        self._place = tuple(place)
        self._looked_t = now
        return changed, notes

    # -- the page ----------------------------------------------------------------------------------------

    def is_at_hand(self, move: lw.Move) -> bool:
        """Whether what is seen after a move can be read without waiting: no query thins it, it lies in memory."""
        loud = [i for i, stream in enumerate(self._streams) if stream.file.size]
        if self._query or len(loud) > FEW_LOGS:
            return False
        for i in loud:
            file = self._streams[i].file
            match move:
                case lw.Start():
                    at = 0
                case lw.Follow():
                    at = file.size
                case lw.Scroll():
                    at = file.size if self._following else self._place[i]
                case _ as unreachable:
                    assert_never(unreachable)
            if not file.is_at_hand(at - NEAR_BYTES, at + NEAR_BYTES):
                return False
        return True

    def page(self) -> lw.Page:
        """What is to be seen now."""
        end = tuple(stream.file.size for stream in self._streams)
        if self._following:
            rows = rows_before(self._streams, end, self.height, folds=self.folds)
        else:
            rows = list(
                itertools.islice(rows_from(self._streams, self._place, folds=self.folds), self.height)
            )
            if len(rows) < self.height:
                missing = self.height - len(rows)
                rows = rows_before(self._streams, self._place, missing, folds=self.folds) + rows
        if rows:
            self._place = rows[0].place
        after = place_after(rows[-1]) if rows else self._place
        loud = [stream for stream in self._streams if not stream.is_silent and stream.file.size]
        one = loud[0] if len(loud) == 1 else None
        size = sum(end)
        self._made += 1
        return lw.Page(
            made=self._made,
            rows=tuple(rows),
            logs=tuple(stream.ref for stream in self._streams),
            place=self._place,
            end=after,
            cursor=self._cursor_in(rows),
            jump=self._jump,
            following=self._following,
            attempt=self._number(),
            attempts=len(self._state.attempts),
            query=self._query,
            searched=self._searched,
            merged_by=_merged_by(loud),
            numbers=_numbers(one, rows) if one is not None else (),
            line_count=one.file.line_count if one is not None else None,
            place_ratio=min(sum(after) / size, 1.0) if size else 1.0,
            counted_ratio=_done(
                [self._lines[str(s.ref.path)] for s in loud if str(s.ref.path) in self._lines]
            ),
            size_bytes=size,
            shown=self._tally(self._shown, None) if any(not s.is_whole for s in loud) else None,
            search=self._tally(self._found, self._place_of_cursor(rows)) if self._searched else None,
            empty_why=self._why_empty() if not rows else "",
        )

    def _why_empty(self) -> str:
        if not self._streams:
            return "no log file has appeared yet"
        troubles = [
            f"{name_of(s)}: {s.file.trouble}"
            for s in self._streams
            if s.file.trouble and s.ref.who != "agent"
        ]
        if not any(stream.file.is_open for stream in self._streams):
            return troubles[0] if troubles else "no log file has appeared yet"
        if self._query:
            return "no line matches; f changes the filter, Esc clears it"
        return "the ranks have not written a line yet"

    def _cursor_in(self, rows: Sequence[Row]) -> int | None:
        if self._cursor is None:
            return None
        wanted = self._cursor
        return next((n for n, r in enumerate(rows) if any((i, x.offset) == wanted for i, x in r.parts)), None)

    def _place_of_cursor(self, rows: Sequence[Row]) -> Place | None:
        number = self._cursor_in(rows) if self._on_match else None
        return rows[number].place if number is not None else None

    def _tally(self, tasks: Sequence[Task], place: Place | None) -> lw.Tally:
        found = sum(task.total for task in tasks)
        ordinal: int | None = None
        if place is not None:
            ordinal = 1
            for finder, offset in zip(self._finders, place, strict=True):
                before = 0 if finder.is_silent else _found_before(finder, offset)
                if before is None:
                    return lw.Tally(found, _done(tasks))
                ordinal += before
        return lw.Tally(found, _done(tasks), ordinal)


def place_after(row: Row) -> Place:
    """Where the next row begins."""
    ends = {i: line.end for i, line in row.parts}
    return tuple(ends.get(i, offset) for i, offset in enumerate(row.place))


def name_of(stream: Stream) -> str:
    """A log in two parts of its path."""
    return "/".join(stream.ref.path.parts[-2:])


def _done(tasks: Sequence[Task]) -> float:
    size = sum(task.file.size for task in tasks)
    return sum(task.done_bytes for task in tasks) / size if size else 1.0


def _counts_for(tasks: Sequence[Task], stream: Stream) -> Counts | None:
    task = next((t for t in tasks if t.file is stream.file), None)
    return task.counts if task is not None and task.generation == stream.file.generation else None


def _found_before(finder: Stream, offset: int) -> int | None:
    chunk = offset // CHUNK_BYTES
    counts = finder.counts
    if counts is None or chunk > counts.chunks:
        return 0 if not offset else None
    return counts.before(chunk) + sum(hit < offset for hit in finder.hits(chunk))


def _numbers(stream: Stream, rows: Sequence[Row]) -> tuple[int | None, ...]:
    found: list[int | None] = []
    last: tuple[int, int] | None = None
    for row in rows:
        line = row.parts[0][1]
        number = (
            last[1] + 1 if last is not None and last[0] == line.offset else stream.file.number_at(line.offset)
        )
        found.append(number + 1 if number is not None else None)
        last = (line.end, number) if number is not None else None
    return tuple(found)


def _merged_by(streams: Sequence[Stream]) -> str:
    if len(streams) < 2:
        return ""
    stamped = [stream.is_stamped for stream in streams if stream.file.size]
    return "time" if all(stamped) else "time and arrival" if any(stamped) else "arrival"
