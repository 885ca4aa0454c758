"""Reads the lines of one log in order: a grammar once a shape, then what was learnt of the shape.

A grammar reads a line once; what it learnt is kept by the line's shape (the line without its digits), so that
the next line of that shape costs one dictionary look-up and one match of a regular expression made for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from supervisor.sources.metrics.exact import ExactPlan, make_exact
from supervisor.sources.metrics.grammar import parse_line
from supervisor.sources.metrics.layout import Layout, finished, free_digits, spans_of
from supervisor.sources.metrics.names import CANONICAL, LOSS, STEP, TOTAL_STEPS, VAL_LOSS
from supervisor.sources.metrics.plans import Plan, fixed_digits, make_plan
from supervisor.sources.metrics.readings import NOTHING, RANK, MetricSample, Parsed
from supervisor.sources.metrics.rules import MetricRule
from supervisor.sources.metrics.tables import (
    Header,
    find_header,
    is_rule,
    is_section_row,
    read_pair_row,
    read_row,
)
from supervisor.sources.metrics.values import PLAIN, convert
from supervisor.text.prefixes import split_prefix

MAX_LINE = 4096
MAX_SHAPES = 4096
MAX_HEADING = 120
MAX_EXACT = 4096
_DIGITS = b"0123456789"
_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_TRACE = "Traceback (most recent call last)"
_BLOCK = re.compile(
    r"^\s*(?:[-*=# ]*(?:[\w .-]*(?:config\w*|arguments?|args|hyper-?parameters?|options|settings|parameters)\b[\w .]*)[:\s=*-]*|[\w.-]+:)\s*$",
    re.IGNORECASE,
)
# "Test Error:" with its values on the lines below.
_EVALUATION = re.compile(
    r"(?:test|val|valid|validation|eval|evaluation|dev)\s+\w[ \w]{0,22}:\s*$", re.IGNORECASE
)
_BEST = re.compile(r"best (?:iteration|epoch|step|model|result)\w* (?:is|was)?\s*:\s*$", re.IGNORECASE)
# In a block that looks like settings a number of so many digits was computed, not chosen.
_MEASURED = re.compile(r":\s*-?\d+\.\d{7,}(?:e-?\d+)?\s*$")
_RAW_RANK = re.compile(
    r"\s*\[(?:RANK|Rank|rank)[ :=]{1,2}(\d{1,6})\]:?\s|\s*\[[\w.-]{1,64}:(\d{1,6})/\d{1,6}\]\s|\s*\((\d{1,6})/\d{1,6}\)\s(?=\S)(?=.*\b(?:[Ee]poch|[Ss]tep|[Ii]ter))"
)


class _State(NamedTuple):
    """What the lines before say about the next one."""

    header: Header | None = None
    in_trace: bool = False
    in_record: bool = False
    in_settings: bool = False
    in_section: bool = False
    skip_next: bool = False
    in_evaluation: bool = False
    after_val_loss: bool = False


class _Known(NamedTuple):
    """What is known of a shape in a state: how to read it (None: it says nothing), and the book for the line after."""

    plan: Plan | None
    after: _Book


class _Book:
    """What is known in one state: by the line with all digits alike (`exact`), and by the line without digits."""

    __slots__ = ("exact", "shapes", "state")

    def __init__(self, state: _State) -> None:
        self.state = state
        self.exact: dict[bytes, tuple[ExactPlan | None, _Book]] = {}
        self.shapes: dict[bytes, tuple[_Known, ...]] = {}


class MetricReader:
    """Reads the lines of one stream, in order: it remembers table headers, what block it is in, and shapes.

    Args:
        rules: a user's own rules; they are asked first, and what they find stands.
    """

    def __init__(self, rules: Sequence[MetricRule] = ()) -> None:
        self._rules = tuple(rules)
        self._books: dict[_State, _Book] = {}
        self._book = self._book_of(_State())
        self._shapes = 0
        self._exact = 0
        self._seen: set[int] = set()

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
            sample = None if plan is None else plan(raw)
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
        shape = raw.translate(None, _DIGITS)
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
        rank, body, rank_at = _who(line)
        parsed, state, is_row = _parse(body, book.state)
        if self._shapes >= MAX_SHAPES:
            # A log of ever new shapes: what was learnt is let go, it is learnt again.
            self._books = {book.state: book}
            book.shapes.clear()
            book.exact.clear()
            self._shapes = self._exact = 0
        self._book = self._book_of(state)
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

    def _book_of(self, state: _State) -> _Book:
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
                rank = rank if sample is not None else _who(line)[0]
                target = values if rule.name in CANONICAL else other
                whole = rule.name in {STEP, TOTAL_STEPS} and value == value // 1
                target[rule.name] = int(value) if whole else value
        return MetricSample(values, other, rank) if values or other else None


def _parse(text: str, state: _State) -> tuple[Parsed, _State, bool]:
    """What a line says in a state, the state after it, and whether it was a row of a table."""
    stripped = text.strip()
    if not stripped:
        return NOTHING, state._replace(in_settings=False), False
    indented = text[:1] in " \t"
    if state.skip_next:
        return NOTHING, state._replace(skip_next=False), False
    if state.in_trace:
        if indented or stripped.startswith(("During handling", "The above exception", _TRACE)):
            return NOTHING, state, False
        return NOTHING, state._replace(in_trace=False), False
    if _TRACE in text:
        return NOTHING, state._replace(in_trace=True), False
    if _BEST.search(text):
        return NOTHING, state._replace(skip_next=True), False
    parsed, after = _from_table(text, state)
    if parsed is not None:
        return parsed, after, True
    if not indented:
        after = after._replace(in_record=False, in_evaluation=False)
    if len(text) <= MAX_HEADING and _BLOCK.match(text):
        return NOTHING, after._replace(in_settings=True), False
    if _EVALUATION.match(text):
        return NOTHING, after._replace(in_evaluation=True), False
    if after.in_settings and indented and not _MEASURED.search(text):
        return NOTHING, after, False
    after, of_val = after._replace(after_val_loss=False), after.after_val_loss
    parsed = parse_line(
        text, in_record=after.in_record or (after.in_settings and indented), evaluates=after.in_evaluation
    )
    if of_val and _is_breakdown(parsed):
        parsed = parse_line(text, evaluates=True)
    after = after._replace(after_val_loss=[r.field for r in parsed.readings] == [VAL_LOSS])
    if not indented:
        after = after._replace(in_settings=parsed.settings and not parsed.readings)
    return parsed, after._replace(in_record=after.in_record or parsed.heading), False


def _is_breakdown(parsed: Parsed) -> bool:
    """Whether a line names a loss beside its parts, and no step: below "Val loss: 0.41" that is the same loss again."""
    fields = [reading.field for reading in parsed.readings]
    return LOSS in fields and len(fields) > 1 and set(fields) <= {LOSS, ""}


def _from_table(text: str, state: _State) -> tuple[Parsed | None, _State]:
    if is_rule(text):
        return NOTHING, state
    if is_section_row(text):
        return NOTHING, state._replace(in_section=True)
    row = read_pair_row(text, in_section=state.in_section)
    if row is not None:
        return row, state
    state = state._replace(in_section=False)
    if state.header is not None:
        row = read_row(state.header, text)
        if row is not None:
            return row, state
    header = find_header(text)
    if header is not None:
        return NOTHING, state._replace(header=header)
    return None, state


def _who(text: str) -> tuple[int | None, str, tuple[int, int] | None]:
    """The rank that the line's prefix names, what stands behind the prefix, and where the rank's digits are."""
    origin, body = split_prefix(text)
    rank = origin.rank if origin.rank is not None else origin.local_rank
    if rank is None and origin.task is not None:
        if body[:1].isdigit() or body[:1] in {"-", "."}:
            return None, text, None  # "1: 803.28, …": a step, not a task
        rank = origin.task
    place = len(text) - len(body)
    runs = [run.span() for run in re.finditer(r"\d+", text[:place]) if int(run.group()) == rank]
    where = runs[0] if len(runs) == 1 else None
    if match := _RAW_RANK.match(body):
        body = body[match.end() :]
        if rank is None:
            group = match.lastindex or 1
            rank = int(match.group(group))
            where = (place + match.start(group), place + match.end(group))
    return rank, body, where


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
