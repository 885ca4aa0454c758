"""Reads the lines of one log in order: a grammar once a shape, then what was learnt of the shape.

A grammar reads a line once; what it learnt is kept by the line's shape (the line without its digits), so that
the next line of that shape costs one dictionary look-up and one match of a regular expression made for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from supervisor.sources.metrics.grammar import parse_line
from supervisor.sources.metrics.names import CANONICAL, STEP, TOTAL_STEPS
from supervisor.sources.metrics.plans import Plan, finished, make_plan
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
_DIGITS = b"0123456789"
_TRACE = "Traceback (most recent call last)"
_BLOCK = re.compile(
    r"^\s*(?:[-*=# ]*(?:[\w .-]*(?:config\w*|arguments?|args|hyper-?parameters?|options|settings|parameters)\b[\w .]*)[:\s=*-]*|[\w.-]+:)\s*$",
    re.IGNORECASE,
)
_BEST = re.compile(r"best (?:iteration|epoch|step|model|result)\w* (?:is|was)?\s*:\s*$", re.IGNORECASE)
_RAW_RANK = re.compile(
    r"\s*\[(?:RANK|Rank|rank)[ :=]{1,2}(\d{1,6})\]:?\s|\s*\[[\w.-]{1,64}:(\d{1,6})/\d{1,6}\]\s|\s*\((\d{1,6})/\d{1,6}\)\s(?=\S)"
)


class _State(NamedTuple):
    """What the lines before say about the next one."""

    header: Header | None = None
    in_trace: bool = False
    in_record: bool = False
    in_settings: bool = False
    in_section: bool = False
    skip_next: bool = False


class _Known(NamedTuple):
    """What is known of a shape in a state: how to read it (None: it says nothing), and the state after it."""

    plan: Plan | None
    after: _State
    book: dict[bytes, tuple[_Known, ...]]


class MetricReader:
    """Reads the lines of one stream, in order: it remembers table headers, what block it is in, and shapes.

    Args:
        rules: a user's own rules; they are asked first, and what they find stands.
    """

    def __init__(self, rules: Sequence[MetricRule] = ()) -> None:
        self._rules = tuple(rules)
        self._state = _State()
        self._books: dict[_State, dict[bytes, tuple[_Known, ...]]] = {}
        self._book = self._books.setdefault(self._state, {})
        self._shapes = 0

    def feed(self, line: str) -> MetricSample | None:
        """Read a clean line (see `text.decode.clean`); None when it reports nothing."""
        if len(line) > MAX_LINE:
            line = line[:MAX_LINE]
        try:
            shape = line.encode().translate(None, _DIGITS)
        except UnicodeEncodeError:
            shape = line.encode("utf-8", "surrogatepass").translate(None, _DIGITS)
        for plan, after, book in self._book.get(shape, ()):
            sample = plan(line) if plan is not None else None
            if sample is not None or plan is None:
                self._state, self._book = after, book
                break
        else:
            sample = self._learn(line, shape)
        return self._with_rules(sample, line) if self._rules else sample

    def _learn(self, line: str, shape: bytes) -> MetricSample | None:
        rank, body, rank_at = _who(line)
        parsed, after, is_row = _parse(body, self._state)
        known_before = self._book
        self._state = after
        if self._shapes >= MAX_SHAPES:
            # A log of ever new shapes: what was learnt is let go, it is learnt again.
            self._books.clear()
            self._shapes = 0
        self._book = self._books.setdefault(after, {})
        prefix = len(line) - len(body)
        findable = bool(parsed.readings) and (rank is None or rank_at is not None)
        plan = make_plan(line, prefix, parsed, rank_at, is_row=is_row) if findable else None
        same = known_before.get(shape, ())
        if (plan is not None or not parsed.readings) and len(same) < 8:
            known_before[shape] = (*same, _Known(plan, after, self._book))
            self._shapes += 1
        return _sample(parsed, body, rank)

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
        return NOTHING, state._replace(in_record=False, in_settings=False), False
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
        after = after._replace(in_record=False)
    if _BLOCK.match(text):
        return NOTHING, after._replace(in_settings=True), False
    if after.in_settings and indented:
        return NOTHING, after, False
    parsed = parse_line(text, in_record=after.in_record)
    if not indented:
        after = after._replace(in_settings=parsed.settings and not parsed.readings)
    return parsed, after._replace(in_record=after.in_record or parsed.heading), False


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
