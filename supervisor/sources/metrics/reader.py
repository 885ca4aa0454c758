"""Reads the lines of one log in order: a grammar once a shape, then what was learnt of the shape.

A grammar reads a line once; what it learnt is kept by the line's shape (the line without its digits), so that
the next line of that shape costs one dictionary look-up and one call of a function made for it. Lines in a row that
are alike share such a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from supervisor.sources.metrics.context import State, parse
from supervisor.sources.metrics.exact import ExactPlan, make_exact
from supervisor.sources.metrics.layout import Layout, finished, free_digits, spans_of
from supervisor.sources.metrics.names import CANONICAL, STEP, TOTAL_STEPS
from supervisor.sources.metrics.plans import Plan, fixed_digits, make_plan
from supervisor.sources.metrics.readings import RANK, Parsed
from supervisor.sources.metrics.rules import MetricRule
from supervisor.sources.metrics.runs import DIGITS, JsonRun, make_run
from supervisor.sources.metrics.samples import FoundSample, MetricSample
from supervisor.sources.metrics.speaker import who
from supervisor.sources.metrics.values import PLAIN, convert
from supervisor.text.decode import clean

MAX_LINE = 4096
MAX_SHAPES = 4096
MAX_EXACT = 4096
# How many lines are tried as a run of one JSON shape: twice as many after each that was one, half after each that was not.
LEAST_RUN, MOST_RUN = 8, 1024
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)


class _Known(NamedTuple):
    """What is known of a shape in a state: how to read it (None: it says nothing), and the book for the line after."""

    plan: Plan | None
    after: _Book


class _Book:
    """What is known in one state: by the line with all digits alike (`exact`), and by the line without digits.

    `runs`: what reads many JSON lines of a shape; None where nothing can.
    """

    __slots__ = ("exact", "runs", "shapes", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.exact: dict[bytes, tuple[ExactPlan | None, _Book]] = {}
        self.shapes: dict[bytes, tuple[_Known, ...]] = {}
        self.runs: dict[bytes, JsonRun | None] = {}


class MetricReader:
    """Reads the lines of one stream, in order: it remembers table headers, what block it is in, and shapes.

    Args:
        rules: a user's own rules; they are asked first, and what they find stands.
    """

    def __init__(self, rules: Sequence[MetricRule] = ()) -> None:
        self._rules = tuple(rules)
        self._books: dict[State, _Book] = {}
        self._book = self._book_of(State())
        self._shapes = 0
        self._exact = 0
        self._seen: set[int] = set()
        self._stride = LEAST_RUN

    def read(self, lines: Sequence[bytes]) -> list[MetricSample | None]:
        """Read lines as they stand in the log, without newlines: what `feed` says of each once it is clean.

        What is known is looked up by the raw bytes: it was learnt of clean lines, so a line that it knows is clean.
        """
        if self._rules:
            return [self.feed(clean(raw)) for raw in lines]
        found: list[MetricSample | None] = []
        place = 0
        while place < len(lines):
            some = lines[place : place + self._stride] if place or len(lines) > self._stride else lines
            place += len(some)
            run = self._run_of(some[0])
            samples = run.read(some) if run is not None else None
            if samples is not None and some is lines:
                return samples
            found += samples if samples is not None else self._read_each(some)
            if run is None or samples is not None:
                self._stride = min(2 * self._stride, MOST_RUN)
            else:
                self._stride = max(self._stride // 2, LEAST_RUN)
        return found

    def _read_each(self, lines: Sequence[bytes]) -> list[MetricSample | None]:
        found: list[MetricSample | None] = []
        run: list[bytes] = []
        keys = [*map(bytes.translate, lines, repeat(_ALIKE))]
        for raw, key, following in zip(lines, keys, [*keys[1:], None], strict=True):
            if key == following or run:
                run.append(raw)
                if key != following:
                    found += self._read_run(key, run)
                    run = []
                continue
            if (known := self._book.exact.get(key)) is not None:
                plan, after = known
                sample = None if plan is None else plan.read(raw)
                if sample is not None or plan is None:
                    self._book = after
                    found.append(sample)
                    continue
            found.append(self.feed(clean(raw)))
        return found

    def _read_run(self, key: bytes, lines: Sequence[bytes]) -> Sequence[MetricSample | None]:
        """Read lines whose digits stand in the same places, at once if that is known and leaves the state as it is."""
        known = self._book.exact.get(key)
        if known is not None and known[1] is self._book:
            plan = known[0]
            samples = plan.read_run(lines) if plan is not None else [None] * len(lines)
            if samples is not None:
                return samples
        return [self.feed(clean(raw)) for raw in lines]

    def _run_of(self, raw: bytes) -> JsonRun | None:
        """What reads lines like this one many at a time, where they leave the state as it is."""
        if raw[:1] != b"{":
            return None
        book, shape = self._book, raw.translate(None, DIGITS)
        if shape not in book.runs and shape in book.shapes:
            plan, after = book.shapes[shape][0]
            line = raw.decode("utf-8", "surrogatepass")
            layout = plan.layout(line) if plan is not None and after is book else None
            book.runs[shape] = make_run(line, shape, layout, MAX_LINE) if layout is not None else None
        return book.runs.get(shape)

    def feed(self, line: str) -> MetricSample | None:
        """Read a clean line (see `text.decode.clean`); None when it reports nothing."""
        try:
            raw = line.encode()
        except UnicodeEncodeError:
            raw = line.encode("utf-8", "surrogatepass")
        key = raw.translate(_ALIKE)
        sample: MetricSample | None
        if (known := self._book.exact.get(key)) is not None:
            plan, after = known
            sample = None if plan is None else plan.read(raw)
            if sample is not None or plan is None:
                self._book = after
            else:
                sample = self._by_shape(line, raw, key)
        else:
            sample = self._by_shape(line, raw, key)
        return self._with_rules(sample, line) if self._rules else sample

    def _by_shape(self, line: str, raw: bytes, key: bytes) -> MetricSample | None:
        if len(line) > MAX_LINE:
            return self.feed(line[:MAX_LINE])
        shape = raw.translate(None, DIGITS)
        book = self._book
        for plan, after in book.shapes.get(shape, ()):
            sample = plan.read(line) if plan is not None else None
            if sample is not None or plan is None:
                self._book = after
                if key not in book.exact:
                    self._come_again(line, key, book, plan)
                return sample
        return self._learn(line, shape, key)

    def _come_again(self, line: str, key: bytes, book: _Book, plan: Plan | None) -> None:
        """The second time that digits stand in these places, a plan is made for just these."""
        mark = hash(key)
        if mark not in self._seen:
            if len(self._seen) >= MAX_SHAPES:
                self._seen.clear()
            self._seen.add(mark)
            return
        if plan is None:
            self._keep_exact(book, key, None)
        elif (layout := plan.layout(line)) is not None and (exact := make_exact(line, layout)) is not None:
            self._keep_exact(book, key, exact)

    def _keep_exact(self, book: _Book, key: bytes, plan: ExactPlan | None) -> None:
        if self._exact >= MAX_EXACT:
            for other in self._books.values():
                other.exact.clear()
            self._exact = 0
        book.exact[key] = (plan, self._book)
        self._exact += 1

    def _learn(self, line: str, shape: bytes, key: bytes) -> MetricSample | None:
        book = self._book
        rank, body, rank_at = who(line)
        parsed, state, is_row = parse(body, book.state)
        if self._shapes >= MAX_SHAPES:
            # A log of ever new shapes: what was learnt is let go, it is learnt again.
            self._books = {book.state: book}
            book.shapes.clear()
            book.runs.clear()
            book.exact.clear()
            self._shapes = self._exact = 0
        self._book = self._book_of(state)
        if parsed.once:
            return _sample(parsed, body, rank)
        prefix = len(line) - len(body)
        findable = bool(parsed.readings) and (rank is None or rank_at is not None)
        spans = spans_of(parsed, prefix, rank_at) if findable else None
        plan = None
        if spans is not None:
            free = free_digits(line, prefix, is_row=is_row)
            for span in spans:
                free[span.begin : span.end] = b"\1" * (span.end - span.begin)
            plan = make_plan(line, spans, free)
            exact = make_exact(line, Layout(spans, fixed_digits(line, free)))
            if exact is not None and key not in book.exact:
                self._keep_exact(book, key, exact)
        same = book.shapes.get(shape, ())
        if (plan is not None or not parsed.readings) and len(same) < 8:
            book.shapes[shape] = (*same, _Known(plan, self._book))
            self._shapes += 1
        return _sample(parsed, body, rank)

    def _book_of(self, state: State) -> _Book:
        book = self._books.get(state)
        if book is None:
            book = self._books[state] = _Book(state)
        return book

    def _with_rules(self, sample: MetricSample | None, line: str) -> MetricSample | None:
        values = dict(sample.values) if sample is not None else {}
        other = dict(sample.other) if sample is not None else {}
        rank = sample.rank if sample is not None else None
        for rule in self._rules:
            match = rule.regex.search(line)
            value = convert(PLAIN, match.group(1) or "") if match is not None else None
            if value is not None:
                rank = rank if sample is not None else who(line)[0]
                target = values if rule.name in CANONICAL else other
                whole = rule.name in {STEP, TOTAL_STEPS} and value == value // 1
                target[rule.name] = int(value) if whole else value
        return FoundSample(values, other, rank) if values or other else None


def _sample(parsed: Parsed, text: str, rank: int | None) -> MetricSample | None:
    values: dict[str, float] = {}
    other: dict[str, float] = {}
    for reading in parsed.readings:
        value = convert(reading.conversion, text[reading.start : reading.end])
        if value is None:
            continue
        if reading.field == RANK:
            rank = rank if rank is not None else int(value)
        elif reading.field:
            values[reading.field] = value
        else:
            other[reading.name] = value
    pair = None
    if parsed.pair is not None:
        mine, total = (convert(r.conversion, text[r.start : r.end]) for r in parsed.pair)
        pair = (mine, total) if mine is not None and total is not None else None
    return finished(values, other, rank, pair)
