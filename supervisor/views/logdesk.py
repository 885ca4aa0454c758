"""The place in the logs and what lies around it: which logs, which lines, which page. One thread uses it."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Sequence

from supervisor.run.paths import NodePaths
from supervisor.run.state import RunState
from supervisor.sources.metrics import MetricReader
from supervisor.views import logwishes as lw
from supervisor.views.logfile import Change, LogFile, TextLine
from supervisor.views.logindex import CHUNK_BYTES, Counts
from supervisor.views.logmatch import Query, Term
from supervisor.views.logmerge import Place, Row, Stream, rows_before, rows_from
from supervisor.views.logplace import LogAt, LogPoint
from supervisor.views.logs import logs_of, speaker_of
from supervisor.views.logscan import Task

# A clipboard takes no more through a terminal; longer texts are for the pager.
COPY_LINES = 5000
COPY_CHARS = 500_000
# Lines that hold a step's number and are tried as its own line.
STEP_TRIES = 2000
# How far above a line its step may stand.
STEP_LINES_BACK = 60


class NothingThereError(LookupError):
    """What was asked for is not to be found; one line says so."""


class LogDesk:
    """Where the screen stands in the logs of an attempt.

    Args:
        node: where the run's logs are listed.
        check: called now and then while something takes long; raises to give it up.
    """

    def __init__(self, node: NodePaths, check: Callable[[], None]) -> None:
        self.height = 1
        self.work_changed = False
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
        self._jump = 0
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
        if [stream.ref for stream in self._streams] == refs:
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
        busiest = max((stream.bytes_per_s for stream in self._streams), default=0.0)
        for stream in self._streams:
            stream.busiest_bytes_per_s = busiest
        self._place = tuple(before.get(ref.path, 0) for ref in refs)
        if not same_attempt:
            self._following, self._cursor = True, None
        self._plan()

    def _file(self, path: str) -> LogFile:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = LogFile(path)
            file.refresh()
            self._folders.add(os.path.dirname(path))
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
        if self._asked is not None:
            path, number = self._asked
            index = next((i for i, s in enumerate(self._streams) if str(s.ref.path) == path), None)
            if index is None or self._try_line(index, number):
                self._asked = None
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
                notes.append(f"{_name(stream)} was removed; what was open is still shown")
            else:
                for one in (stream, self._finders[i]):
                    one.anew()
                if (task := self._lines.get(str(stream.ref.path))) is not None:
                    task.counts = stream.file.newlines
                place[i] = 0
                self._cursor = None
                notes.append(f"{_name(stream)} was cut or replaced; it is read anew")
        self._place = tuple(place)
        self._looked_t = now
        return changed, notes

    # -- the page ----------------------------------------------------------------------------------------

    def page(self) -> lw.Page:
        """What is to be seen now."""
        end = tuple(stream.file.size for stream in self._streams)
        if self._following:
            rows = rows_before(self._streams, end, self.height)
        else:
            rows = list(itertools.islice(rows_from(self._streams, self._place), self.height))
            if len(rows) < self.height:
                missing = self.height - len(rows)
                rows = rows_before(self._streams, self._place, missing) + rows
        if rows:
            self._place = rows[0].place
        after = _after(rows[-1]) if rows else self._place
        loud = [stream for stream in self._streams if not stream.is_silent and stream.file.size]
        one = loud[0] if len(loud) == 1 else None
        size = sum(end)
        return lw.Page(
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
            f"{_name(s)}: {s.file.trouble}" for s in self._streams if s.file.trouble and s.ref.who != "agent"
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

    # -- moving ------------------------------------------------------------------------------------------

    def scroll(self, rows: int) -> None:
        """Move the page; at its end it follows again."""
        if rows < 0:
            before = rows_before(self._streams, self._place, -rows)
            self._following = False
            if before:
                self._place = before[0].place
        elif not self._following:
            ahead = list(itertools.islice(rows_from(self._streams, self._place), rows + self.height))
            if len(ahead) < rows + self.height:
                self._following, self._cursor = True, None
            else:
                self._place = ahead[rows].place

    def to_start(self) -> None:
        """The first line."""
        self._following, self._cursor = False, None
        self._place = (0,) * len(self._streams)
        first = next(rows_from(self._streams, self._place), None)
        if first is not None:
            self._stand_on(first.parts[0][0], first.parts[0][1].offset)

    def follow(self, on: bool) -> None:
        """The newest line, or stand still."""
        self._following = on
        if on:
            self._cursor = self._asked = None

    def to_line(self, index: int, number: int) -> None:
        """A line by its number from 1; as soon as it is counted."""
        if not 0 <= index < len(self._streams):
            raise NothingThereError("no log is open")
        if not self._try_line(index, number):
            file = self._streams[index].file
            total = file.line_count
            if total is not None:
                raise NothingThereError(f"{_name(self._streams[index])} has {total} lines")
            self._asked = (str(self._streams[index].ref.path), number)
            raise NothingThereError(
                f"line {number}: counting, {file.counted_bytes / max(file.size, 1):.0%} so far"
            )

    def _try_line(self, index: int, number: int) -> bool:
        offset = self._streams[index].file.offset_of(number - 1)
        if offset is not None:
            self._go(index, offset)
        return offset is not None

    def to_time(self, t: float, *, has_day: bool) -> None:
        """The first lines at a time; without a day, of the newest day that has it."""
        loud = [i for i, stream in enumerate(self._streams) if not stream.is_silent and stream.file.size]
        if not loud:
            raise NothingThereError("no log is open")
        if not has_day:
            newest = max(self._newest_t(i) for i in loud)
            t -= 86400 * max(0, -int((newest - t) // 86400))
        self._following, self._cursor = False, None
        self._place = tuple(s.offset_at(t) if i in loud else 0 for i, s in enumerate(self._streams))
        first = next(rows_from(self._streams, self._place), None)
        if first is None:
            self._following = True
            raise NothingThereError(f"no line is as late as {time.strftime('%H:%M:%S', time.localtime(t))}")
        self._stand_on(first.parts[0][0], first.parts[0][1].offset)
        self._centre(first.place)

    def _newest_t(self, index: int) -> float:
        stream = self._streams[index]
        line = next(stream.file.backward(stream.file.size), None)
        return stream.key(line) if line is not None else stream.file.written_t

    def _go(self, index: int, offset: int) -> None:
        """A line of one log, the others as they stood when it was written."""
        line = next(self._streams[index].file.forward(offset), None)
        if line is None:
            raise NothingThereError("that line is not there any more")
        t = self._streams[index].key(line)
        self._following = False
        self._stand_on(index, line.offset)
        self._centre(
            tuple(line.offset if i == index else s.offset_at(t) for i, s in enumerate(self._streams))
        )

    def _stand_on(self, index: int, offset: int) -> None:
        self._cursor = (index, offset)
        self._on_match = False
        self._jump += 1

    def _centre(self, place: Place) -> None:
        above = rows_before(self._streams, place, self.height // 2)
        self._place = above[0].place if above else place

    def to_place(self, at: LogAt) -> None:
        """What a chart, a verdict or the dashboard's pane points at."""
        if at.attempt is not None and at.attempt != self._number():
            self._go_to_attempt(at.attempt)
        self.refresh(time.time())
        if at.path is not None:
            index = self._log_named(at.path)
            if index is None:
                raise NothingThereError(f"{at.path} is no log of attempt {self._number()}")
            if at.offset is not None:
                self._go(index, at.offset)
            elif at.line is not None:
                self.to_line(index, at.line)
            return
        if at.step is not None and self._to_step(at.step, at.who):
            return
        if at.t is not None:
            self.to_time(at.t, has_day=True)
        elif at.step is not None:
            raise NothingThereError(f"no line names step {at.step:g}")

    def _log_named(self, path: str) -> int | None:
        exact = [i for i, s in enumerate(self._streams) if str(s.ref.path) == path or s.ref.path.name == path]
        ends = [
            i for i, s in enumerate(self._streams) if str(s.ref.path).endswith(os.sep + path.lstrip("./"))
        ]
        return next(iter([*exact, *ends]), None)

    def _to_step(self, step: float, who: str | None) -> bool:
        """The line that reports a step: of all that hold its number the one that the metrics' reader reads so."""
        text = rf"(?<![\d.])0*{re.escape(f'{step:.0f}')}(?![\d.]*\d)"
        number = Query((Term(text, re.compile(text)),))
        for index, stream in enumerate(self._streams):
            if who is not None and stream.ref.who not in {who, ""}:
                continue
            finder = Stream(stream.ref, stream.file, 0.0, self._check)
            finder.ask(number)
            for line in itertools.islice(finder.forward(0), STEP_TRIES):
                said, text = speaker_of(line.text, stream.ref.who)
                if _step_of(text) == step and (who is None or said in {who, ""}):
                    self._go(index, line.offset)
                    return True
        return False

    # -- looking for lines ---------------------------------------------------------------------------------

    def show(self, query: Query) -> None:
        """Let only these lines through; the page stays about where it is."""
        self._query = query
        for stream in self._streams:
            stream.ask(query)
        self._plan()

    def find(self, query: Query, cursor: Row | None) -> None:
        """Search; the nearest match up to the cursor (else the page's end) is shown."""
        self._searched = query
        self._plan()
        if query:
            self.match(cursor, -1, including=True)

    def match(self, cursor: Row | None, way: int, *, including: bool = False) -> None:
        """The next match, later or earlier than the cursor."""
        if cursor is None:
            place = tuple(stream.file.size for stream in self._streams)
        else:
            place = _after(cursor) if way > 0 or including else cursor.place
        best: tuple[float, int, TextLine] | None = None
        for i, finder in enumerate(self._finders):
            lines = finder.forward(place[i]) if way > 0 else finder.backward(place[i])
            line = next(lines, None)
            if line is None:
                continue
            candidate = (way * self._streams[i].key(line), i, line)
            best = candidate if best is None or candidate[:2] < best[:2] else best
        if best is None:
            total = self._tally(self._found, None)
            if total.done_ratio >= 1 and not total.found:
                raise NothingThereError("not found")
            raise NothingThereError("no match further " + ("down" if way > 0 else "up"))
        self._go(best[1], best[2].offset)
        self._on_match = True

    def copied(self, first: Row, last: Row) -> lw.Copied:
        """The lines from one row to another, each as it is shown, without who said it."""
        if last.place < first.place:
            first, last = last, first
        texts: list[str] = []
        size = 0
        for row in itertools.islice(rows_from(self._streams, first.place, stop=_after(last)), COPY_LINES):
            size += len(row.text) + 1
            if size > COPY_CHARS:
                break
            texts.append(row.text)
        return lw.Copied("\n".join(texts), len(texts))

    def point(self, row: Row) -> LogPoint:
        """The step that a row or the lines above it name, and when it was written."""
        index, line = row.parts[0]
        stream = self._streams[index]
        step = _step_of(row.text)
        if step is None:
            above = itertools.islice(stream.file.backward(line.offset), STEP_LINES_BACK)
            steps = (_step_of(speaker_of(x.text, stream.ref.who)[1]) for x in above)
            step = next((found for found in steps if found is not None), None)
        return LogPoint(self._number(), row.who[0] or None, step, stream.key(line))


def _after(row: Row) -> Place:
    ends = {i: line.end for i, line in row.parts}
    return tuple(ends.get(i, offset) for i, offset in enumerate(row.place))


def _step_of(text: str) -> float | None:
    sample = MetricReader().feed(text)
    return sample.values.get("step") if sample is not None else None


def _name(stream: Stream) -> str:
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
