"""Reads the lines of one log in order, using the user's rules, then cached shapes, and otherwise the grammar.

The grammar takes about 0.6 ms per line, so it parses each shape only once. A shape is a line without its
digits, cached as one regular expression: the literal text, `[0-9]+` where digits may change, and a group
around each value. Matching a line with five values takes about 2 µs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count, pairwise, repeat, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, cast

from supervisor.sources.metrics.blocks import State, parse
from supervisor.sources.metrics.names import CANONICAL, Field
from supervisor.sources.metrics.progress_bars import find_bar
from supervisor.sources.metrics.tokens import (
    MASKED,
    PLAIN,
    WHOLE,
    Conversion,
    Parsed,
    convert,
    mask,
    numbers,
    tokens,
    who,
)
from supervisor.text.decode import clean

_RUN = re.compile(r"[0-9]+|[^0-9]+")
_ORDER = {name: place for place, name in enumerate(CANONICAL)}


class _Cell(NamedTuple):
    """One number in a line: its name, its index among the line's values, and its conversion."""

    name: str
    column: int
    conversion: Conversion


class MetricSample(NamedTuple):
    """The numbers that one line reports.

    Attributes:
        values: numbers in base units (seconds, bytes, ratios), keyed by canonical name (`names.CANONICAL`).
            `step` and `total_steps` are ints. NaN and infinities are kept.
        other: values as printed, keyed by the log's own names.
        rank: set only if the line contains its rank.
        off_curve: see `Parsed`, also for `evaluates` and `plain_time`.
    """

    values: dict[str, float]
    other: dict[str, float]
    rank: int | None = None
    off_curve: bool = False
    evaluates: bool = False
    plain_time: bool = False

    @property
    def step(self) -> int | None:
        """The training step, if the line has one."""
        return int(self.values[Field.STEP]) if Field.STEP in self.values else None

    @property
    def loss(self) -> float | None:
        """The training loss, if the line has one."""
        return self.values.get(Field.LOSS)


class Columns(NamedTuple):
    """The numbers in one or more lines of a shape, keyed by name. None means that the line lacks the number.

    For `off_curve`, `evaluates` and `plain_time`, see `Parsed`.
    """

    values: Mapping[str, Sequence[float | None]] = {}
    other: Mapping[str, Sequence[float | None]] = {}
    ranks: Sequence[int | None] | None = None
    off_curve: bool = False
    evaluates: bool = False
    plain_time: bool = False

    def reporting(self, rows: Sequence[int]) -> tuple[Sequence[int], Columns]:
        """Return the `rows` that contain at least one number, with their numbers. A rate of 0 steps per second does not count."""
        cells = (*self.values.values(), *self.other.values())
        if not all(None in column for column in cells):
            return rows, self
        return self.only(
            rows, [at for at in range(len(rows)) if any(column[at] is not None for column in cells)]
        )

    def only(self, rows: Sequence[int], kept: Sequence[int]) -> tuple[Sequence[int], Columns]:
        """Return the rows at the given positions of `rows`, with their numbers."""

        def cut(columns: Mapping[str, Sequence[float | None]]) -> dict[str, Sequence[float | None]]:
            return {name: [column[at] for at in kept] for name, column in columns.items()}

        ranks = None if self.ranks is None else [self.ranks[at] for at in kept]
        return [rows[at] for at in kept], self._replace(
            values=cut(self.values), other=cut(self.other), ranks=ranks
        )

    def step(self, at: int) -> float | None:
        """Return the step in row `at`, or None if its line has no step."""
        steps = self.values.get(Field.STEP)
        return steps[at] if steps else None

    def losses(self, rows: int) -> Sequence[float | None]:
        """Return the training losses of `rows` lines, with None for a line that adds no point to the curve."""
        known = self.values.get(Field.LOSS) if not self.off_curve else None
        return (None,) * rows if known is None else known

    def sample(self, at: int) -> MetricSample:
        """Return the sample for the line in row `at`."""
        values, other = (
            {name: value for name, column in columns.items() if (value := column[at]) is not None}
            for columns in (self.values, self.other)
        )
        rank = self.ranks[at] if self.ranks is not None else None
        return MetricSample(values, other, rank, self.off_curve, self.evaluates, self.plain_time)


class Form:
    """How to read lines of one shape: where their values are and what they mean.

    Args:
        line: the line that the grammar parsed.
        parsed: the result for the text after the launcher prefix.
        prefix: the length of the launcher prefix in characters.
        rank_at: the position of the rank in the prefix.
        is_row: whether the line is a table row.

    Attributes:
        overlaps: whether one value lies inside another.
    """

    def __init__(
        self, line: str, parsed: Parsed, prefix: int, rank_at: tuple[int, int] | None, *, is_row: bool
    ) -> None:
        self._line, self._parsed, self._prefix, self._is_row = line, parsed, prefix, is_row
        found = {Field.RANK: (*rank_at, WHOLE)} if rank_at is not None else {}
        kinds: tuple[dict[str, tuple[int, int, Conversion]], ...] = ({}, {}, found, {})
        for one in parsed.readings:
            kind = 2 if one.field == Field.RANK else 0 if one.field else 1
            place = (prefix + one.start, prefix + one.end, one.conversion)
            if kind != 2 or Field.RANK not in kinds[2]:
                kinds[kind][one.field or one.name] = place
        for name, one in zip((Field.STEP, Field.TOTAL_STEPS), parsed.pair or (), strict=False):
            kinds[3][name] = (prefix + one.start, prefix + one.end, one.conversion)
        # Some values occur twice: a step that is also the first of a pair.
        self.places = sorted({at[:2] for kind in kinds for at in kind.values()})
        self._values, self._other, self._rank, self._pair = (
            [_Cell(name, self.places.index(at[:2]), at[2]) for name, at in kind.items()] for kind in kinds
        )
        self._values.sort(key=lambda cell: _ORDER[cell.name])
        self.overlaps = any(one[1] > two[0] for one, two in pairwise(self.places))

    def columns(self) -> Columns:
        """Return the numbers in the line this form was built from."""
        return self._convert([[self._line[begin:end]] for begin, end in self.places])

    def read(self, lines: Sequence[bytes]) -> Columns | None:
        """Return the numbers in lines of this shape, or None if any line differs where it must not."""
        rows = self._rows(b"\n".join([*lines, b""]).decode("utf-8", "surrogatepass"))
        if len(rows) != len(lines):
            return None
        # For a pattern with one group, findall returns the texts themselves.
        return self._convert([rows] if len(self.places) == 1 else [*zip(*rows, strict=True)])

    def _convert(self, texts: Sequence[Sequence[str]]) -> Columns:
        """Convert the texts of many lines to numbers. `texts` has one sequence per entry in `places`."""
        values, own, ranks, pair = (
            {cell.name: numbers(cell.conversion, texts[cell.column]) for cell in cells}
            for cells in (self._values, self._other, self._rank, self._pair)
        )
        if pair and Field.STEP in values:
            # The total counts if the pair is the named step, or off by one.
            values[Field.TOTAL_STEPS] = [
                total if mine is not None and step is not None and abs(mine - step) <= 1 else None
                for mine, total, step in zip(
                    pair[Field.STEP], pair[Field.TOTAL_STEPS], values[Field.STEP], strict=True
                )
            ]
        rank = cast("Sequence[int | None] | None", ranks.get(Field.RANK))
        parsed = self._parsed
        return Columns(values, own, rank, parsed.off_curve, parsed.evaluates, parsed.plain_time)

    @cached_property
    def _rows(self) -> Callable[[str], list[Any]]:
        """The compiled line matcher, built on first use. Compiling takes a millisecond, and many shapes never recur."""
        line, free, end = self._line, self._free_digits(), 0
        parts = []
        for begin, stop in self.places:
            value = _RUN.sub(_any_digits, line[begin:stop])
            parts += [_literal(line, end, begin, free), "(", value, ")"]
            end = stop
        parts.append(_literal(line, end, len(line), free))
        return re.compile(f"^{''.join(parts)}\n", re.MULTILINE).findall

    def _free_digits(self) -> bytearray:
        """Return one byte per character: 1 where digits may vary from line to line, 0 where they belong to a name.

        Digits may vary in a launcher prefix, in a table row, in masked text (timestamps, source locations) and in values.
        """
        prefix, size = self._prefix, len(self._line)
        free = bytearray(b"\1" * size if self._is_row else b"\1" * prefix + b"\0" * (size - prefix))
        masked = mask(self._line[prefix:])
        if (bar := find_bar(masked)) is not None:
            masked = bar.rest
        for place, character in enumerate(masked, prefix):
            free[place] |= character == MASKED
        for token in tokens(masked):
            begin, end = prefix + token.start, prefix + token.stop
            free[begin:end] = b"\1" * (end - begin)
        return free


def _any_digits(run: re.Match[str]) -> str:
    return "[0-9]+" if run[0][0] in "0123456789" else re.escape(run[0])


def _literal(line: str, begin: int, end: int, free: bytearray) -> str:
    """Return a pattern for the literal text between two values."""
    return "".join(
        _any_digits(run) if free[begin + run.start()] else re.escape(run[0])
        for run in _RUN.finditer(line[begin:end])
    )


# In characters. Only the start of a longer line is read.
MAX_LINE = 8192
MAX_SHAPES = 4096
# Lines of one shape may differ in the digits of names ("Acc@1", "Acc@5"). This limits the forms per shape.
MAX_FORMS = 8
_DIGITS = b"0123456789"


class _Known(NamedTuple):
    """How to read a shape in a given state (None if there is nothing to report), and the state that follows."""

    form: Form | None
    after: _Shapes


DrawnState: TypeAlias = tuple[float | None, float | None]


def standing_states(states: Sequence[DrawnState], before: DrawnState | None = None) -> list[bool]:
    """Return whether each of a bar's consecutive (step, loss) states is a point on the curve. The latest always is.

    A script that sets the count and the loss separately makes tqdm draw twice per step. If ``update`` comes before
    ``set_postfix``, both drawings show the same step, the first with the previous loss. In ``for batch in bar``,
    ``set_postfix`` comes first and shows the same loss with the previous step. Both drawings are written together, so the
    latest state with a step is the second of a pair and reveals the order. If no step is drawn twice, equal losses are a
    coincidence. A bar may show several losses for one step (tqdm's ``miniters``), and each of them counts. A state drawn
    repeatedly counts once. For an evaluation bar, which has no step, the last state counts.

    Args:
        states: in drawing order.
        before: the last state read earlier, needed to determine whether the first of `states` repeats its step.
    """
    if not states:
        return []
    known = states if before is None else [before, *states]
    counted = [one for one, after in zip_longest(known, known[1:]) if one[0] is not None and one != after]
    pairs = list(pairwise(counted))
    same_step = bool(pairs) and pairs[-1][0][0] == pairs[-1][1][0]
    drawn_twice = any(one[0] == after[0] for one, after in pairs)
    same_loss = drawn_twice and not same_step and pairs[-1][0][1] == pairs[-1][1][1]

    def stands(shown: DrawnState, state: DrawnState, after: DrawnState | None) -> bool:
        step, loss = state
        if after is None or step is None:
            return after is None or loss is not None or after[0] is not None
        again = after == state or (same_step and step == after[0] and loss == shown[1])
        return loss is not None and not again and not (same_loss and loss == after[1])

    return list(map(stands, [before or states[0], *states], states, [*states[1:], None]))


class _Shapes:
    """The shapes known in one state.

    Attributes:
        steady: the shapes that leave the state unchanged.
    """

    __slots__ = ("by_shape", "state", "steady")

    def __init__(self, state: State) -> None:
        self.state = state
        self.by_shape: dict[bytes, tuple[_Known, ...]] = {}
        self.steady: set[bytes] = set()

    def learn(self, shape: bytes, form: Form | None, after: _Shapes) -> None:
        """Store how to read a shape."""
        forms = self.by_shape.get(shape, ())
        self.by_shape[shape] = (*forms, _Known(form, after))
        if after is not self:
            self.steady.discard(shape)
        elif not forms:
            self.steady.add(shape)


class MetricReader:
    """Reads the lines of one stream in order, remembering table headers, the current block and line shapes.

    Args:
        rules: the user's own rules (`[[metrics]] name, regex`), which take precedence. Group 1 is the value.
    """

    def __init__(self, rules: Sequence[tuple[str, re.Pattern[str]]] = ()) -> None:
        self._rules = tuple(rules)
        self._states: dict[State, _Shapes] = {}
        self._known = self._shapes_of(State())
        self._count = 0

    def read_rows(self, lines: Sequence[bytes]) -> list[tuple[int, Columns, int, float | None]]:
        """Read raw lines without newlines. Return (line number, columns, row in the columns, loss) tuples, sorted by line.

        Used for a backlog, where few lines are kept and the rest do not need objects of their own.
        """
        blocks: Iterable[tuple[Sequence[int], Columns]] = self.read_columns(lines)
        if self._rules:
            one_by_one = (((row,), self._feed(clean(raw))) for row, raw in enumerate(lines))
            blocks = ((rows, columns) for rows, columns in one_by_one if columns is not None)
        found = [
            cell
            for rows, columns in blocks
            for cell in zip(rows, repeat(columns), count(), columns.losses(len(rows)))
        ]
        found.sort(key=itemgetter(0))
        return found

    def read_columns(self, lines: Sequence[bytes]) -> Iterator[tuple[Sequence[int], Columns]]:
        """Yield line numbers and columns of values, for callers that read millions of lines.

        Lines that report nothing are omitted. The user's rules are not applied.

        Lines whose shapes leave the state unchanged are read shape by shape, because their order does not matter.
        """
        shapes = [raw.translate(None, _DIGITS) for raw in lines]
        begin = 0
        while begin < len(lines):
            steady = self._known.steady
            end = next((row for row in range(begin, len(lines)) if shapes[row] not in steady), len(lines))
            together = self._read_together(lines, shapes, range(begin, end))
            if together is None:
                together = [((row,), self._read_clean(clean(lines[row]))) for row in range(begin, end)]
            if end < len(lines):
                together.append(((end,), self._read_clean(clean(lines[end]))))
            for rows, columns in together:
                with_numbers = columns.reporting(rows)
                if with_numbers[0]:
                    yield with_numbers
            begin = end + 1

    def _read_together(
        self, lines: Sequence[bytes], shapes: Sequence[bytes], rows: Sequence[int]
    ) -> list[tuple[Sequence[int], Columns]] | None:
        """Read lines of steady shapes. Return None if they have to be read one by one.

        Cached shapes come from clean lines, so lines with the same shape need no cleaning.
        """
        by_shape: dict[bytes, list[int]] = {}
        for row in rows:
            by_shape.setdefault(shapes[row], []).append(row)
        found: list[tuple[Sequence[int], Columns]] = []
        for shape, mine in by_shape.items():
            some = [lines[row] for row in mine]
            form = self._known.by_shape[shape][0].form
            if form is not None:
                columns = form.read(some) if max(map(len, some)) <= MAX_LINE else None
                if columns is None:
                    return None
                found.append((mine, columns))
        return found

    def feed(self, line: str) -> MetricSample | None:
        """Read a clean line (see `text.decode.clean`). Return None if the line reports nothing."""
        columns = self._feed(line)
        return columns.sample(0) if columns is not None else None

    def _feed(self, line: str) -> Columns | None:
        rows, columns = self._read_clean(line).reporting((0,))
        found = columns if rows else None
        return self._with_rules(found, line) if self._rules else found

    def _read_clean(self, line: str) -> Columns:
        line = line[:MAX_LINE]
        raw = line.encode("utf-8", "surrogatepass")
        shape = raw.translate(None, _DIGITS)
        for form, after in self._known.by_shape.get(shape, ()):
            columns = form.read([raw]) if form is not None else Columns()
            if columns is not None:
                self._known = after
                return columns
        return self._learn(line, shape)

    def _learn(self, line: str, shape: bytes) -> Columns:
        known = self._known
        rank, body, rank_at = who(line)
        parsed, state, is_row = parse(body, known.state)
        if self._count >= MAX_SHAPES:
            # The log keeps producing new shapes, so drop the stored ones and start over.
            known.by_shape.clear()
            known.steady.clear()
            self._states = {known.state: known}
            self._count = 0
        self._known = self._shapes_of(state)
        form = Form(line, parsed, len(line) - len(body), rank_at, is_row=is_row)
        # Do not store a line whose digits decide its meaning, or whose rank has no single position.
        is_plain = not form.overlaps and (rank is None or rank_at is not None)
        more = len(known.by_shape.get(shape, ())) < MAX_FORMS
        if more and not parsed.once and (is_plain or not parsed.readings):
            known.learn(shape, form if parsed.readings else None, self._known)
            self._count += 1
        columns = form.columns()
        return columns if rank is None else columns._replace(ranks=(rank,))

    def _shapes_of(self, state: State) -> _Shapes:
        if state not in self._states:
            self._states[state] = _Shapes(state)
        return self._states[state]

    def _with_rules(self, columns: Columns | None, line: str) -> Columns | None:
        found = columns or Columns()
        values, other, ranks = {**found.values}, {**found.other}, found.ranks
        for name, regex in self._rules:
            match = regex.search(line)
            value = convert(PLAIN, match.group(1) or "") if match is not None else None
            if value is not None:
                ranks = ranks or (who(line)[0],)
                whole = name in {Field.STEP, Field.TOTAL_STEPS} and value == value // 1
                target = values if name in CANONICAL else other
                target[name] = (int(value) if whole else value,)
        return found._replace(values=values, other=other, ranks=ranks) if values or other else None
