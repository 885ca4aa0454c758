"""What was learnt about a line's shape, so that the grammar (some 0.6 ms a line) reads each shape once.

The shape is the line without its digits. The memo of a shape is one regular expression, made of the line that was read:
its text as it stands, `[0-9]+` where digits may change, and a group around each value. It costs some 2 µs a line of five values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, cast

import msgspec

from supervisor.sources.metrics.bars import find_bar
from supervisor.sources.metrics.names import CANONICAL, LOSS, STEP, TOTAL_STEPS
from supervisor.sources.metrics.tokens import MASKED, mask, tokens
from supervisor.sources.metrics.values import RANK, WHOLE, Conversion, Parsed, numbers

_RUN = re.compile(r"[0-9]+|[^0-9]+")
_ORDER = {name: place for place, name in enumerate(CANONICAL)}


class Place(NamedTuple):
    """Where a value stands in a line, in characters, and how it becomes a number."""

    begin: int
    end: int
    conversion: Conversion


class Layout:
    """The values of a line: where they stand, and which of the sample's numbers each is.

    Args:
        parsed: what the grammar found in the line behind its launcher's prefix.
        prefix: how many characters that prefix has.
        rank_at: where in it the rank stands.
    """

    def __init__(self, parsed: Parsed, prefix: int, rank_at: tuple[int, int] | None) -> None:
        def place(reading: tuple[int, int], conversion: Conversion) -> Place:
            return Place(prefix + reading[0], prefix + reading[1], conversion)

        fields: dict[str, Place] = {}
        other: dict[str, Place] = {}
        ranks = [Place(*rank_at, WHOLE)] if rank_at is not None else []
        for one in parsed.readings:
            at = place((one.start, one.end), one.conversion)
            if one.field == RANK:
                ranks.append(at)
            elif one.field:
                fields[one.field] = at
            else:
                other[one.name] = at
        pair = [place((one.start, one.end), one.conversion) for one in parsed.pair or ()]
        # Some values stand twice: a step that is also the first of a pair.
        self.places = sorted(
            {(at.begin, at.end) for at in (*fields.values(), *other.values(), *ranks[:1], *pair)}
        )

        def cells(some: Mapping[str, Place]) -> list[_Cell]:
            return [
                _Cell(name, self.places.index((at.begin, at.end)), at.conversion) for name, at in some.items()
            ]

        self._fields = cells(dict(sorted(fields.items(), key=lambda field: _ORDER[field[0]])))
        self._other = cells(other)
        self._rank = cells({RANK: ranks[0]} if ranks else {})
        self._sums_up = parsed.off_curve
        self._renamed = parsed.renamed
        self._evaluates = parsed.evaluates
        self._plain_time = parsed.plain_time
        self._pair = cells(dict(zip((STEP, TOTAL_STEPS), pair, strict=False)))

    @property
    def overlaps(self) -> bool:
        """Whether a value stands within another."""
        return any(one[1] > two[0] for one, two in pairwise(self.places))

    def columns(self, line: str) -> Columns:
        """The numbers of the line itself."""
        return self.convert([[line[begin:end]] for begin, end in self.places])

    def convert(self, texts: Sequence[Sequence[str]]) -> Columns:
        """The numbers of many lines: for each of `places` the texts of all lines."""

        def numbers_of(cells: Sequence[_Cell]) -> dict[str, Sequence[float | None]]:
            return {cell.name: numbers(cell.conversion, texts[cell.column]) for cell in cells}

        values = numbers_of(self._fields)
        if self._pair and STEP in values:
            pair = numbers_of(self._pair)
            # The total counts where the pair is the named step, or one off it.
            values[TOTAL_STEPS] = [
                total if mine is not None and step is not None and abs(mine - step) <= 1 else None
                for mine, total, step in zip(pair[STEP], pair[TOTAL_STEPS], values[STEP], strict=True)
            ]
        own = numbers_of(self._other)
        ranks = cast("Sequence[int | None] | None", numbers_of(self._rank).get(RANK))
        return Columns(values, own, ranks, self._sums_up, self._renamed, self._evaluates, self._plain_time)


class _Cell(NamedTuple):
    """One number of a line: its name, its place among the line's values, and how it is converted."""

    name: str
    column: int
    conversion: Conversion


class Columns(NamedTuple):
    """The numbers of one or many lines of a shape, by name. None: the line has no such number after all.

    `off_curve`, `renamed`, `evaluates`, `plain_time`: see `Parsed`.
    """

    values: Mapping[str, Sequence[float | None]] = {}
    other: Mapping[str, Sequence[float | None]] = {}
    ranks: Sequence[int | None] | None = None
    off_curve: bool = False
    renamed: str = ""
    evaluates: bool = False
    plain_time: bool = False

    def reporting(self, rows: Sequence[int]) -> tuple[Sequence[int], Columns]:
        """Those of `rows` that have a number (a rate of 0 steps a second is none), and their numbers."""
        cells = (*self.values.values(), *self.other.values())
        if not all(None in column for column in cells):
            return rows, self
        return self.only(
            rows, [at for at in range(len(rows)) if any(column[at] is not None for column in cells)]
        )

    def only(self, rows: Sequence[int], kept: Sequence[int]) -> tuple[Sequence[int], Columns]:
        """The rows at these places of `rows`, and their numbers."""

        def cut(columns: Mapping[str, Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
            return {name: [column[at] for at in kept] for name, column in columns.items()}

        ranks = None if self.ranks is None else [self.ranks[at] for at in kept]
        return [rows[at] for at in kept], self._replace(
            values=cut(self.values), other=cut(self.other), ranks=ranks
        )

    def step(self, at: int) -> float | None:
        """The step of row `at`; None where its line names none."""
        steps = self.values.get(STEP)
        return steps[at] if steps else None

    def losses(self, rows: int) -> Sequence[float | None]:
        """The training losses of `rows` lines; None where a line names none that is a point of the curve."""
        known = self.values.get(LOSS) if not self.off_curve else None
        return (None,) * rows if known is None else known


class MetricSample(msgspec.Struct, frozen=True, gc=False):
    """What one line reports: a row of columns. Its dictionaries are made when asked for; of a backlog most are not."""

    columns: Columns
    at: int

    @property
    def values(self) -> dict[str, float]:
        """Canonical names (`names.CANONICAL`) to numbers in base units: seconds, bytes, ratios.

        `step` and `total_steps` are ints; NaN and infinities are kept.
        """
        return self._row(self.columns.values)

    @property
    def other(self) -> dict[str, float]:
        """Names of the log's own to values as printed."""
        return self._row(self.columns.other)

    def _row(self, columns: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
        at = self.at
        return {name: value for name, column in columns.items() if (value := column[at]) is not None}

    @property
    def rank(self) -> int | None:
        """The rank, only where the line itself names it."""
        return self.columns.ranks[self.at] if self.columns.ranks is not None else None

    @property
    def step(self) -> int | None:
        """The training step, if the line names it."""
        step = self.columns.values[STEP][self.at] if STEP in self.columns.values else None
        return int(step) if step is not None else None

    @property
    def loss(self) -> float | None:
        """The training loss, if the line names it."""
        return self.columns.values[LOSS][self.at] if LOSS in self.columns.values else None

    @property
    def off_curve(self) -> bool:
        """Whether the line's loss is no point of the curve (see `Parsed`)."""
        return self.columns.off_curve

    @property
    def renamed(self) -> str:
        """The name of the loss, where the curve was of another loss until here."""
        return self.columns.renamed

    @property
    def evaluates(self) -> bool:
        """Whether the line is of held-out data."""
        return self.columns.evaluates


def sample_of(
    values: Mapping[str, float], other: Mapping[str, float], rank: int | None, *, off_curve: bool = False
) -> MetricSample:
    """A sample of these numbers."""
    columns = Columns(
        {name: (value,) for name, value in values.items()},
        {name: (value,) for name, value in other.items()},
        (rank,),
        off_curve,
    )
    return MetricSample(columns, 0)


class Form:
    """Reads the lines of one shape.

    Args:
        line: the line that the grammar read.
        layout: what it found there.
        free: a byte a character; 1 where digits may change from line to line, 0 where they belong to a name.
    """

    def __init__(self, line: str, layout: Layout, free: bytearray) -> None:
        self._line = line
        self._free = free
        self._layout = layout

    @cached_property
    def _rows(self) -> Callable[[str], list[Any]]:
        """Finds the values of lines. It takes a millisecond to compile, and many a shape never comes again."""
        line, end = self._line, 0
        parts = []
        for begin, stop in self._layout.places:
            parts += [
                _literal(line, end, begin, self._free),
                "(",
                _RUN.sub(_any_digits, line[begin:stop]),
                ")",
            ]
            end = stop
        parts.append(_literal(line, end, len(line), self._free))
        return re.compile(f"^{''.join(parts)}\n", re.MULTILINE).findall

    def read(self, lines: Sequence[bytes]) -> Columns | None:
        """The numbers of lines of this shape; None if a line differs where it must not."""
        rows = self._rows(b"\n".join([*lines, b""]).decode("utf-8", "surrogatepass"))
        if len(rows) != len(lines):
            return None
        # Of a pattern with one group findall gives the texts themselves.
        return self._layout.convert([rows] if len(self._layout.places) == 1 else [*zip(*rows, strict=True)])


def _any_digits(run: re.Match[str]) -> str:
    return "[0-9]+" if run[0][0] in "0123456789" else re.escape(run[0])


def _literal(line: str, begin: int, end: int, free: bytearray) -> str:
    """The text between two values, as a pattern."""
    return "".join(
        _any_digits(run) if free[begin + run.start()] else re.escape(run[0])
        for run in _RUN.finditer(line[begin:end])
    )


def free_digits(line: str, prefix: int, *, is_row: bool) -> bytearray:
    """A byte a character: 1 where digits may change in the next line of the shape, 0 where they belong to a name.

    They may change in a launcher's prefix, a table's row, what is masked (time stamps, places in a source) and in values.
    """
    free = bytearray(len(line))
    free[:prefix] = b"\1" * prefix
    if is_row:
        return bytearray(b"\1" * len(line))
    masked = mask(line[prefix:])
    if (bar := find_bar(masked)) is not None:
        masked = bar.rest
    for place, character in enumerate(masked, prefix):
        free[place] |= character == MASKED
    for token in tokens(masked):
        begin, end = prefix + token.start, prefix + token.stop
        free[begin:end] = b"\1" * (end - begin)
    return free
