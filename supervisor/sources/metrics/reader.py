"""Reads the lines of one log in order: the user's rules, the memo of known shapes, and the grammar for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise, repeat, zip_longest
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from supervisor.sources.metrics.context import State, parse
from supervisor.sources.metrics.memo import Columns, Form, Layout, MetricSample, free_digits, sample_of
from supervisor.sources.metrics.names import CANONICAL, STEP, TOTAL_STEPS
from supervisor.sources.metrics.prefix import who
from supervisor.sources.metrics.values import PLAIN, convert
from supervisor.text.decode import clean
from supervisor.text.patterns import LinearPattern, compile_linear

# In characters. A longer line is read by its beginning.
MAX_LINE = 8192
MAX_SHAPES = 4096
# Lines of one shape may differ in digits that belong to names ("Acc@1", "Acc@5"): at most this many forms of a shape are kept.
MAX_FORMS = 8
_DIGITS = b"0123456789"


@dataclass(frozen=True, slots=True)
class MetricRule:
    """A rule of the user's (`[[metrics]] name, regex`): the first group of `regex` is the value of `name`."""

    name: str
    regex: LinearPattern


def compile_rules(rules: Iterable[tuple[str, str]]) -> tuple[MetricRule, ...]:
    """Make rules of (name, regex) pairs.

    Raises:
        ValueError: a pattern does not compile, could hang, or has no group; the message names it.
    """
    made = []
    for name, pattern in rules:
        try:
            regex = compile_linear(pattern)
        except ValueError as error:
            raise ValueError(f"metric {name!r}: {pattern!r} {error}") from None
        if regex.groups < 1:
            raise ValueError(f"metric {name!r}: {pattern!r} has no group: put the number in (...)")
        made.append(MetricRule(name, regex))
    return tuple(made)


class _Known(NamedTuple):
    """How to read a shape in a state (None: it reports nothing), and what is known in the state after it."""

    form: Form | None
    after: _Shapes


DrawnState: TypeAlias = tuple[float | None, float | None]


def standing_states(states: Sequence[DrawnState], before: DrawnState | None = None) -> list[bool]:
    """Which of the (step, loss) that a bar showed one after the other are points of a curve; the newest state always stands.

    Where count and loss are set one after the other, tqdm draws twice a step: ``update`` and then ``set_postfix`` show the same step, first
    with the loss of the step before; in ``for batch in bar`` it is ``set_postfix`` first, which shows the same loss with the step before.
    Both are written at once, so the newest state with a step is the later one of such a pair, and shows which of the two it is. Where no
    step is drawn twice, an equal loss is nothing but an equal loss. A bar may stand at one step while several losses come (tqdm's
    ``miniters``): each of them stands. A state that is drawn again stands once, and of an evaluation's bar, which has no step, the last.

    Args:
        states: in the order in which they were drawn.
        before: the state that was read last, which tells whether the first of these draws its step again.
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
    """What is known in one state, by shape.

    Attributes:
        steady: the shapes that leave the state as it is.
    """

    __slots__ = ("by_shape", "state", "steady")

    def __init__(self, state: State) -> None:
        self.state = state
        self.by_shape: dict[bytes, tuple[_Known, ...]] = {}
        self.steady: set[bytes] = set()

    def clear(self) -> None:
        """Forget all."""
        self.by_shape.clear()
        self.steady.clear()

    def learn(self, shape: bytes, form: Form | None, after: _Shapes) -> None:
        """Keep how a shape is read."""
        forms = self.by_shape.get(shape, ())
        self.by_shape[shape] = (*forms, _Known(form, after))
        if after is not self:
            self.steady.discard(shape)
        elif not forms:
            self.steady.add(shape)


class MetricReader:
    """Reads the lines of one stream, in order: it remembers table headers, what block it is in, and shapes.

    Args:
        rules: a user's own rules; they come first, and what they find is kept.
    """

    def __init__(self, rules: Sequence[MetricRule] = ()) -> None:
        self._rules = tuple(rules)
        self._states: dict[State, _Shapes] = {}
        self._known = self._shapes_of(State())
        self._count = 0

    def read(self, lines: Sequence[bytes]) -> list[MetricSample | None]:
        """Read lines as they stand in the log, without newlines; None for those that report nothing."""
        found: list[MetricSample | None] = [None] * len(lines)
        for row, columns, at, _ in self.read_rows(lines):
            found[row] = MetricSample(columns, at)
        return found

    def read_rows(self, lines: Sequence[bytes]) -> list[tuple[int, Columns, int, float | None]]:
        """The same without a sample a line: (which line, its columns, the row in them, its loss), by line.

        For a backlog, of which few lines are kept: the rest need no object of their own.
        """
        if self._rules:
            samples = ((row, self.feed(clean(raw))) for row, raw in enumerate(lines))
            return [
                (row, one.columns, one.at, None if one.off_curve else one.loss)
                for row, one in samples
                if one is not None
            ]
        found = [
            cell
            for rows, columns in self.read_columns(lines)
            for cell in zip(rows, repeat(columns), count(), columns.losses(len(rows)))
        ]
        found.sort(key=itemgetter(0))
        return found

    def read_columns(self, lines: Sequence[bytes]) -> Iterator[tuple[Sequence[int], Columns]]:
        """The same in columns, for a program that reads millions of lines: which of the lines, and their numbers.

        Lines that report nothing are left out. The user's rules are not applied.

        Lines of known shapes that leave the state as it is may be read in any order, so they are read a shape at a time.
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
        """Read lines of steady shapes; None if they must be read one after the other.

        Shapes were learnt of clean lines, so these need no cleaning.
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
        """Read a clean line (see `text.decode.clean`); None when it reports nothing."""
        rows, columns = self._read_clean(line).reporting((0,))
        sample = MetricSample(columns, 0) if rows else None
        return self._with_rules(sample, line) if self._rules else sample

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
            # A log of ever new shapes: what was learnt is dropped, and learnt again.
            known.clear()
            self._states = {known.state: known}
            self._count = 0
        self._known = self._shapes_of(state)
        prefix = len(line) - len(body)
        layout = Layout(parsed, prefix, rank_at)
        # Nothing is learnt of a line whose digits decide what it means, or whose rank stands nowhere or in several places.
        is_plain = not layout.overlaps and (rank is None or rank_at is not None)
        more = len(known.by_shape.get(shape, ())) < MAX_FORMS
        if more and not parsed.once and (is_plain or not parsed.readings):
            free = free_digits(line, prefix, is_row=is_row)
            form = Form(line, layout, free) if parsed.readings else None
            known.learn(shape, form, self._known)
            self._count += 1
        columns = layout.columns(line)
        return columns if rank is None else columns._replace(ranks=(rank,))

    def _shapes_of(self, state: State) -> _Shapes:
        if state not in self._states:
            self._states[state] = _Shapes(state)
        return self._states[state]

    def _with_rules(self, sample: MetricSample | None, line: str) -> MetricSample | None:
        values = sample.values if sample is not None else {}
        other = sample.other if sample is not None else {}
        rank = sample.rank if sample is not None else None
        for rule in self._rules:
            match = rule.regex.search(line)
            value = convert(PLAIN, match.group(1) or "") if match is not None else None
            if value is not None:
                rank = rank if sample is not None else who(line)[0]
                target = values if rule.name in CANONICAL else other
                whole = rule.name in {STEP, TOTAL_STEPS} and value == value // 1
                target[rule.name] = int(value) if whole else value
        off_curve = sample is not None and sample.off_curve
        return sample_of(values, other, rank, off_curve=off_curve) if values or other else None
