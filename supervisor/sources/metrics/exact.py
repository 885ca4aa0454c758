"""The quickest way to read a line: its digits stand where those of an earlier line stood.

Such a line needs no search: one `struct` call cuts the values out. What is done with them is one function, made
anew for each kind of line (how many values, and how each becomes a number) as `namedtuple` makes its own:
the source holds nothing but numbered variables, never a word of a log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from supervisor.sources.metrics import layout as layouts
from supervisor.sources.metrics.layout import (
    Layout,
    Span,
    converted,
    is_whole,
)
from supervisor.sources.metrics.names import STEP, TOTAL_STEPS
from supervisor.sources.metrics.samples import MetricSample, sample_type
from supervisor.sources.metrics.values import GIB, Conversion, How, duration_parts


class ExactPlan:
    """Reads lines, as UTF-8 bytes, whose digits stand in the same places.

    Args:
        form: cuts the cells out.
        cells: their variables, as source.
        checks: statements that return None for a line that must be read another way.
        sample: the expression that makes the sample.
        bound: what the variables b0, b1, … stand for.
    """

    def __init__(
        self, form: struct.Struct, cells: str, checks: tuple[str, ...], sample: str, bound: Sequence[object]
    ) -> None:
        self.read: Callable[[bytes], MetricSample | None] = _reader(cells, checks, sample, len(bound))(
            form.unpack, *bound
        )
        """One line; None: it must be read another way."""
        self._run: Callable[[Sequence[bytes]], list[MetricSample]] | None = None
        self._make_run = (
            None if checks else lambda: _run_reader(cells, sample, len(bound))(form.iter_unpack, *bound)
        )

    def read_run(self, lines: Sequence[bytes]) -> list[MetricSample] | None:
        """Many lines in a row, in two thirds of the time; None: they must be read one by one."""
        if self._make_run is None:
            return None
        if self._run is None:
            self._run = self._make_run()
        try:
            return self._run(lines)
        except (ValueError, ZeroDivisionError):
            return None


# What `convert` does with a number that is not negative. (A rate of 0 raises: the line must be read another way.)
_OF_POSITIVE = {
    How.INVERSE: "{factor} / {number}",
    How.MEMORY: f"({{n}} if ({{n}} := {{number}}) >= 1e7 else {{n}} * {GIB} / 1024 if {{n}} >= 256 else {{n}} * {GIB})",
    How.SHARE: "({n} / 100 if ({n} := {number}) > 1 else {n} * {factor})",
}


def make_exact(line: str, layout: Layout) -> ExactPlan | None:
    """A plan for lines that differ from `line` in the value of digits alone; None where values share a place."""
    return _Maker(line).make(layout)


class _Maker:
    """Gathers the source of one plan and what its variables are."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._cells: list[tuple[int, int]] = []
        self._bound: list[Any] = []
        self._sized = 0

    def make(self, layout: Layout) -> ExactPlan | None:
        checks = [
            f"if {self._cell(*place)} != {self._bind(self._text(*place))}: return None"
            for place in layout.fixed
        ]
        fields: dict[str, str] = {}
        own: dict[str, str] = {}
        ranks: list[str] = []
        pair: list[str] = []
        for span in layout.spans:
            expression = self._expression(span)
            match span.target:
                case layouts.FIELD:
                    fields[span.name] = expression
                case layouts.OTHER:
                    own[span.name] = expression
                case layouts.RANKS:
                    ranks.append(f"int({expression})")
                case _:
                    pair.append(expression)
        if not (fields or own) or len(pair) == 1:
            return None
        order = sorted(range(len(self._cells)), key=self._cells.__getitem__)
        form = self._struct(order)
        if form is None:
            return None
        sample = self._sample(fields, own, ranks)
        if pair and STEP in fields:
            mine, total = pair
            with_total = self._sample(fields | {TOTAL_STEPS: total}, own, ranks)
            sample = f"{with_total} if abs({mine} - {fields[STEP]}) <= 1 else {sample}"
        cells = ", ".join(f"v{place}" for place in order)
        return ExactPlan(form, cells, tuple(checks), sample, self._bound)

    def _sample(self, fields: Mapping[str, str], own: Mapping[str, str], ranks: Sequence[str]) -> str:
        """The expression that makes the sample out of those of its values."""
        kind = sample_type(tuple(fields), tuple(own), ranked=bool(ranks))
        return f"{self._bind(kind)}({', '.join([*fields.values(), *own.values(), *ranks[:1]])})"

    def _text(self, begin: int, end: int) -> bytes:
        return self._line[begin:end].encode("utf-8", "surrogatepass")

    def _cell(self, begin: int, end: int) -> str:
        self._cells.append((begin, end))
        return f"v{len(self._cells) - 1}"

    def _bind(self, thing: object) -> str:
        self._bound.append(thing)
        return f"b{len(self._bound) - 1}"

    def _expression(self, span: Span) -> str:
        """What `convert` does with texts of this layout, as an expression."""
        text = self._line[span.begin : span.end]
        how, factor = span.conversion
        if how is How.DURATION and (parts := duration_parts(text)):
            terms = [
                f"{self._number(span.begin + begin, span.begin + end)} * {self._bind(scale)}"
                for begin, end, scale in parts
            ]
            return f"({' + '.join(terms)})"
        if is_whole(span.conversion, text.replace(",", "")):
            return self._number(span.begin, span.end, "int")
        if how is How.NUMBER and text[-1:] != ".":
            number = self._number(span.begin, span.end)
            return number if factor == 1.0 else f"{number} * {self._bind(factor)}"
        if how in _OF_POSITIVE and text[-1:].isdigit() and text[:1] != "-":
            number = self._number(span.begin, span.end)
            self._sized += 1
            return _OF_POSITIVE[how].format(n=f"n{self._sized}", number=number, factor=self._bind(factor))
        return f"{self._bind(_of_bytes(span.conversion))}({self._cell(span.begin, span.end)})"

    def _number(self, begin: int, end: int, kind: str = "float") -> str:
        cell = self._cell(begin, end)
        if "," in self._line[begin:end]:
            cell = f"{cell}.replace({self._bind(b',')}, {self._bind(b'')})"
        return f"{kind}({cell})"

    def _struct(self, order: Sequence[int]) -> struct.Struct | None:
        """What cuts the cells out, from left to right; None where two share a place."""
        form, place = [], 0
        for begin, end in (self._cells[cell] for cell in order):
            if begin < place:
                return None
            form.append(f"{len(self._text(place, begin))}x{len(self._text(begin, end))}s")
            place = end
        form.append(f"{len(self._text(place, len(self._line)))}x")
        return struct.Struct("".join(form))


def _of_bytes(conversion: Conversion) -> Callable[[bytes], float]:
    def read(text: bytes) -> float:
        return converted(conversion, text.decode())

    return read


@lru_cache(maxsize=1024)
def _reader(cells: str, checks: tuple[str, ...], sample: str, bound: int) -> Callable[..., Any]:
    """A function that binds names and scales into a reader; one for each kind of line, not for each line."""
    return _defined(
        bound,
        "  def read(raw):",
        f"    ({cells},) = take(raw)",
        *(f"    {check}" for check in checks),
        "    try:",
        f"      return {sample}",
        "    except (ValueError, ZeroDivisionError):",
        "      return None",
        "  return read",
    )


@lru_cache(maxsize=256)
def _run_reader(cells: str, sample: str, bound: int) -> Callable[..., Any]:
    """The same for many lines in a row."""
    return _defined(bound, f"  return lambda lines: [{sample} for ({cells},) in take(b''.join(lines))]")


def _defined(bound: int, *body: str) -> Callable[..., Any]:
    names = "".join(f", b{place}" for place in range(bound))
    scope: dict[str, Any] = {}
    exec("\n".join([f"def bind(take{names}):", *body]), scope)  # noqa: S102 - numbered variables alone, see the module's words
    made: Callable[..., Any] = scope["bind"]
    return made
