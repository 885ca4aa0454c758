"""Moving in the logs: to a line, a time, a step, a match; and what is taken along. One thread uses it."""

from __future__ import annotations

import itertools
import os
import re
import time

from supervisor.views.logs import commands as lw
from supervisor.views.logs.file import TextLine
from supervisor.views.logs.merge import Place, Row, rows_before, rows_from
from supervisor.views.logs.newest import Tone, speaker_of
from supervisor.views.logs.place import LogAt, LogPoint
from supervisor.views.logs.query import Query, Term
from supervisor.views.logs.stream import Stream
from supervisor.views.logs.viewport import LogViewport, NothingThereError, name_of, place_after

# A clipboard takes no more through a terminal; longer texts are for the pager.
COPY_LINES = 5000
COPY_CHARS = 500_000
# Lines that hold a step's number and are tried as its own line.
STEP_TRIES = 2000
# How far above a line its step may stand.
STEP_LINES_BACK = 60


class LogWalker(LogViewport):
    """Goes about in the logs of an attempt."""

    def counts_matter(self) -> bool:
        """Numbers have changed: a line that was asked for may be counted now."""
        shown = super().counts_matter()
        if self._asked is not None:
            path, number = self._asked
            index = next((i for i, s in enumerate(self._streams) if str(s.ref.path) == path), None)
            if index is None or self._try_line(index, number):
                self._asked = None
        return shown

    def scroll(self, rows: int) -> None:
        """Move the page; at its end it follows again."""
        if rows < 0:
            before = rows_before(self._streams, self._place, -rows, folds=self.folds)
            self._following = False
            if before:
                self._place = before[0].place
        elif not self._following:
            below = rows_from(self._streams, self._place, folds=self.folds)
            ahead = list(itertools.islice(below, rows + self.height))
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
                raise NothingThereError(f"{name_of(self._streams[index])} has {total} lines")
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
        place = self._beside(index, line)
        if self._streams[index].is_in_report(line.offset):
            self.folds = False
        self._following = False
        self._stand_on(index, line.offset)
        self._centre(place)

    def _beside(self, index: int, line: TextLine) -> Place:
        """A line of one log, the others as they stood when it was written."""
        t = self._streams[index].key(line)
        return tuple(line.offset if i == index else s.offset_at(t) for i, s in enumerate(self._streams))

    def fold(self, cursor: Row | None) -> None:
        """Open torchrun's own traceback, or make it one line again; the page stays where it is."""
        self.folds = not self.folds
        if self.folds:
            self._place = tuple(s.block_start(at) for s, at in zip(self._streams, self._place, strict=True))
        if cursor is not None and (not self._following or cursor.tone is Tone.FOLDED):
            self._following = False
            self._stand_on(cursor.parts[0][0], cursor.parts[0][1].offset)
            if cursor.tone is Tone.FOLDED:
                self._centre(cursor.place)

    def _stand_on(self, index: int, offset: int) -> None:
        self._cursor = (index, offset)
        self._on_match = False
        self._jump += 1

    def _centre(self, place: Place) -> None:
        above = rows_before(self._streams, place, self.height // 2, folds=self.folds)
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

    def show(self, query: Query, cursor: Row | None = None) -> None:
        """Let only these lines through; the line under the cursor stays, or the page about where it is."""
        self._query = query
        for stream in self._streams:
            stream.ask(query)
        self._plan()
        if cursor is None or self._following or len(cursor.place) != len(self._streams):
            return
        # A row's own place is before the lines that were hidden above it.
        index, line = cursor.parts[0]
        place = self._beside(index, line)
        here = next(rows_from(self._streams, place, folds=self.folds), None)
        if here is not None and any(at == index and x.offset == line.offset for at, x in here.parts):
            self._stand_on(index, line.offset)
            self._centre(place)

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
            place = place_after(cursor) if way > 0 or including else cursor.place
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
        for row in itertools.islice(
            rows_from(self._streams, first.place, stop=place_after(last)), COPY_LINES
        ):
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


def _step_of(text: str) -> float | None:
    # Nearly a MiB, for those who go from a chart's point to its line and back.
    from supervisor.sources.metrics import MetricReader

    sample = MetricReader().feed(text)
    return sample.values.get("step") if sample is not None else None
