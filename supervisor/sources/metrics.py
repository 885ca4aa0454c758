"""Metrics out of any training log, one line at a time.

A grammar reads a line once; what it learnt is kept by the line's shape (the line without its digits), so that
the next line of that shape costs one dictionary look-up and one match of a regular expression made for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from supervisor.sources.metric_line import parse_line
from supervisor.sources.metric_names import CANONICAL, STEP, TOTAL_STEPS
from supervisor.sources.metric_readings import NOTHING, RANK, Parsed
from supervisor.sources.metric_tables import (
    Header,
    find_header,
    is_rule,
    is_section_row,
    read_pair_row,
    read_row,
)
from supervisor.sources.metric_values import PLAIN, convert
from supervisor.text.prefixes import split_prefix

MAX_LINE = 4096
_TRACE = "Traceback (most recent call last)"
_BLOCK = re.compile(
    r"^\s*(?:[-*=# ]*(?:[\w .-]*(?:config\w*|arguments?|args|hyper-?parameters?|options|settings|parameters)\b[\w .]*)[:\s=*-]*|[\w.-]+:)\s*$",
    re.IGNORECASE,
)
_BEST = re.compile(r"best (?:iteration|epoch|step|model|result)\w* (?:is|was)?\s*:\s*$", re.IGNORECASE)
_RAW_RANK = re.compile(
    r"\s*\[(?:RANK|Rank|rank)[ :=]{1,2}(\d{1,6})\]:?\s|\s*\[[\w.-]{1,64}:(\d{1,6})/\d{1,6}\]\s|\s*\((\d{1,6})/\d{1,6}\)\s(?=\S)"
)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """What one line reports.

    `values`: canonical names (`metric_names.CANONICAL`) to numbers in base units: seconds, bytes, ratios; `step`
    and `total_steps` are ints. NaN and infinities are kept. `other`: names of the log's own, values as
    printed. `rank`: only where the line itself says it.
    """

    values: dict[str, float]
    other: dict[str, float] = field(default_factory=dict)
    rank: int | None = None

    @property
    def step(self) -> int | None:
        """The training step, if the line says it."""
        step = self.values.get(STEP)
        return int(step) if step is not None else None

    @property
    def loss(self) -> float | None:
        """The training loss, if the line says it."""
        return self.values.get("loss")


@dataclass(frozen=True, slots=True)
class MetricRule:
    """A user's own rule: the first group of `regex` is the value of `name`."""

    name: str
    regex: re.Pattern[str]


def compile_rules(rules: Iterable[tuple[str, str]]) -> tuple[MetricRule, ...]:
    """Make rules of (name, regex) pairs.

    Raises:
        ValueError: a pattern does not compile or has no group; the message names it.
    """
    made = []
    for name, pattern in rules:
        try:
            regex = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"metric rule {name!r}: {pattern!r} is no regular expression: {error}") from None
        if regex.groups < 1:
            raise ValueError(f"metric rule {name!r}: {pattern!r} has no group: put the number in (...)")
        made.append(MetricRule(name, regex))
    return tuple(made)


class MetricReader:
    """Reads the lines of one stream, in order: it remembers table headers and what block it is in.

    Args:
        rules: a user's own rules; what they find is not looked for again.
    """

    def __init__(self, rules: Sequence[MetricRule] = ()) -> None:
        self._rules = tuple(rules)
        self._header: Header | None = None
        self._rows_missed = 0
        self._in_trace = False
        self._in_record = False
        self._in_settings = False
        self._in_section = False
        self._skip_next = False

    def feed(self, line: str) -> MetricSample | None:
        """Read a clean line (see `text.decode.clean`); None when it reports nothing."""
        text = line[:MAX_LINE]
        rank, body = _who(text)
        parsed = self._parse(body)
        sample = _sample(parsed, body, rank)
        if self._rules:
            return self._with_rules(sample, body, rank)
        return sample

    def _parse(self, text: str) -> Parsed:
        stripped = text.strip()
        if not stripped:
            self._in_record = self._in_settings = False
            return NOTHING
        indented = text[:1] in " \t"
        skip, self._skip_next = self._skip_next, _BEST.search(text) is not None
        if skip:
            return NOTHING
        if self._in_trace:
            if indented or stripped.startswith(("During handling", "The above exception")):
                return NOTHING
            self._in_trace = False
            return NOTHING
        if _TRACE in text:
            self._in_trace = True
            return NOTHING
        table = self._from_table(text)
        if table is not None:
            return table
        if not indented:
            self._in_record = False
        if _BLOCK.match(text):
            self._in_settings = True
            return NOTHING
        if self._in_settings and indented:
            return NOTHING
        parsed = parse_line(text, in_record=self._in_record)
        if not indented:
            self._in_settings = parsed.settings and not parsed.readings
        if parsed.heading:
            self._in_record = True
        return parsed

    def _from_table(self, text: str) -> Parsed | None:
        if is_rule(text):
            return NOTHING
        if is_section_row(text):
            self._in_section = True
            return NOTHING
        row = read_pair_row(text, in_section=self._in_section)
        if row is not None:
            return row
        self._in_section = False
        if self._header is not None:
            row = read_row(self._header, text)
            if row is not None:
                self._rows_missed = 0
                return row
            self._rows_missed += 1
            if self._rows_missed > 200:
                self._header = None
        header = find_header(text)
        if header is not None:
            self._header = header
            self._rows_missed = 0
            return NOTHING
        return None

    def _with_rules(self, sample: MetricSample | None, body: str, rank: int | None) -> MetricSample | None:
        values = dict(sample.values) if sample is not None else {}
        other = dict(sample.other) if sample is not None else {}
        for rule in self._rules:
            match = rule.regex.search(body)
            value = convert(PLAIN, match.group(1) or "") if match is not None else None
            if value is not None:
                target = values if rule.name in CANONICAL else other
                target[rule.name] = (
                    int(value) if rule.name in {STEP, TOTAL_STEPS} and value == value // 1 else value
                )
        if not values and not other:
            return None
        return MetricSample(values, other, sample.rank if sample is not None else rank)


def _who(text: str) -> tuple[int | None, str]:
    """The rank that the line's prefix names, and what stands behind it."""
    origin, body = split_prefix(text)
    rank = origin.rank if origin.rank is not None else origin.local_rank
    if rank is None and origin.task is not None:
        if body[:1].isdigit() or body[:1] in "-.":
            return None, text  # "1: 803.28, …": a step, not a task
        rank = origin.task
    if match := _RAW_RANK.match(body):
        found = next(int(group) for group in match.groups() if group is not None)
        rank = rank if rank is not None else found
        body = body[match.end() :]
    return rank, body


def _sample(parsed: Parsed, text: str, rank: int | None) -> MetricSample | None:
    if not parsed.readings:
        return None
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
    if parsed.pair is not None and STEP in values:
        mine, total = (convert(r.conversion, text[r.start : r.end]) for r in parsed.pair)
        if mine is not None and total is not None and abs(mine - values[STEP]) <= 1:
            values[TOTAL_STEPS] = total
    return MetricSample(values, other, rank) if values or other else None
