"""Rows of text in a small set of semantic styles, truncated, padded and wrapped by cell width. Pure.

Text is never interpreted as markup. `plain` removes control characters and characters whose width varies
between terminals. All code that measures, truncates or pads uses it, so measured and painted widths agree.
`panel.to_strip` applies it to text from any source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple, TypeAlias

from rich.cells import cell_len, set_cell_size

from supervisor.text.decode import printable
from supervisor.text.patterns import Lazy
from supervisor.views.wording.translate import Tr


class TextStyle(StrEnum):
    """What a piece of text means; the theme decides how it looks. A nearby glyph or word conveys the same meaning."""

    PLAIN = "plain"
    DIM = "dim"
    STRONG = "strong"
    LIVE = "live"
    LOSS = "loss"
    BAND = "band"
    PACE = "pace"
    THIRD = "third"
    FOURTH = "fourth"
    FIFTH = "fifth"
    SIXTH = "sixth"
    WARN = "warn"
    BAD = "bad"
    KEY = "key"
    FRAME = "frame"
    FOCUS = "focus"
    CURSOR = "cursor"
    MATCH = "match"
    ROOT = "root"


class Span(NamedTuple):
    """A piece of text in a single style."""

    text: str
    style: TextStyle = TextStyle.PLAIN


Row: TypeAlias = tuple[Span, ...]
EMPTY: Row = ()
_UNSURE = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
LABEL = 12
SPARKS = "▁▂▃▄▅▆▇"
# A word, or one Han character, with the marks that must not begin the next line or end this line.
_HAN = r"\u3400-\u9fff\uf900-\ufaff"
_UNIT = Lazy(rf" ?[（「《“]*(?:[{_HAN}]|[^\s{_HAN}（「《“，。；：、！？）」》”]+|.)[，。；：、！？）」》”]*")


def row(*parts: Span | str) -> Row:
    """Return a row of spans. A bare string becomes a plain span."""
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def spoken(span: Span, tr: Tr) -> Span:
    """Translate a span into the user's language."""
    return Span(tr(span.text), span.style)


def cells(spans: Row) -> int:
    """Return the width of a row in cells."""
    return sum(cells_of(plain(span.text)) for span in spans)


def cells_of(text: str) -> int:
    """Return the width of plain text in cells. ASCII bypasses rich, which would cache every new log line."""
    return len(text) if text.isascii() else cell_len(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Pad or truncate `text` to exactly `width` cells. Truncated text ends in an ellipsis."""
    text = plain(text)
    size = cell_len(text)
    if size == width:
        return text
    if size < width:
        return " " * (width - size) + text if right else text + " " * (width - size)
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


def between(left: Row, right: Row, width: int, fill: Span | None = None) -> Row:
    """Put `left` and `right` at opposite edges of `width` cells. Drop `right` if they do not both fit."""
    fill = fill or Span(" ")
    gap = width - cells(left) - cells(right)
    if gap < 1:
        return clip(left, width)
    return (*left, Span(fill.text * gap, fill.style), *right)


def clip(spans: Row, width: int) -> Row:
    """Truncate a row to `width` cells. If anything is cut, the row ends in an ellipsis."""
    if cells(spans) <= width:
        return spans
    kept: list[Span] = []
    room = width
    for span in spans:
        size = cell_len(plain(span.text))
        if size >= room:
            kept.append(Span(fit(span.text + " ", room), span.style))
            break
        kept.append(span)
        room -= size
    return tuple(kept)


def padded(spans: Row, width: int) -> Row:
    """Pad or truncate a row to exactly `width` cells."""
    size = cells(spans)
    if size > width:
        spans = clip(spans, width)
        size = cells(spans)
    return (*spans, Span(" " * (width - size)))


def wrap(text: str, width: int, most: int) -> list[str]:
    """Wrap `text` into at most `most` lines of `width` cells. If it does not fit, the last line ends in an ellipsis.

    Lines break at spaces. Chinese text breaks after any character, but not before a closing mark (see UAX #14).
    """
    lines: list[str] = []
    line = ""
    words = _words(plain(text))
    for index, word in enumerate(words):
        joined = f"{line}{word}" if line else word.lstrip()
        if cell_len(joined) <= width or not line:
            line = joined
        elif len(lines) + 1 == most:
            line = "".join([joined, *words[index + 1 :]])
            break
        else:
            lines.append(line)
            line = word.lstrip()
    kept = [*lines, line] if line else lines
    return [found if cell_len(found) <= width else fit(found, width) for found in kept]


def labelled(
    label: str,
    text: str,
    width: int,
    style: TextStyle = TextStyle.PLAIN,
    *,
    most: int = 6,
    label_cells: int = LABEL,
) -> list[Row]:
    """Return a label next to its text, wrapped into at most `most` rows."""
    lines = wrap(text, max(width - label_cells, 10), most) or [""]
    return [
        row(Span(fit(label if not at else "", label_cells), TextStyle.DIM), Span(line, style))
        for at, line in enumerate(lines)
    ]


def _words(text: str) -> list[str]:
    """Split text into unbreakable chunks, each including its leading space."""
    if text.isascii():
        return [f" {word}" for word in text.split()]
    return _UNIT.findall(" ".join(text.split()))


def bar(ratio: float | None, width: int, style: TextStyle) -> Row:
    """Draw a bar `width` cells wide, in half-cell steps. If the ratio is unknown, the bar is empty."""
    known = 0.0 if ratio is None else min(max(ratio, 0.0), 1.0)
    full, half = divmod(round(known * width * 2), 2)
    track = "─" * (width - full - half)
    return (Span("━" * full + "╸" * half, style), Span(track, TextStyle.FRAME))


def spark(
    values: Sequence[float],
    width: int,
    low: float | None = None,
    high: float | None = None,
    pick: Callable[[Sequence[float]], float] = fmean,
) -> str:
    """Draw values as at most `width` block characters, right-aligned and clipped to the bounds.

    If there are more values than cells, `pick` combines them. Without bounds, the range is at least a fifth of
    the largest value, so noise stays small. The full block is not used, because adjacent rows would merge.
    """
    if width <= 0:
        return ""
    if not values:
        return " " * width
    values = _picked(values, width, pick)
    floor = min(values) if low is None else low
    top = max(values) if high is None else high
    if low is None and high is None:
        missing = max(0.2 * max(abs(floor), abs(top)) - (top - floor), 0.0)
        floor, top = floor - missing / 2, top + missing / 2
    span = top - floor
    levels = len(SPARKS)
    text = "".join(
        SPARKS[min(levels - 1, max(0, int(levels * (value - floor) / span)))] if span > 0 else SPARKS[0]
        for value in values
    )
    return text.rjust(width)


def spark_row(
    values: Sequence[float],
    width: int,
    style_of: Callable[[float], TextStyle],
    low: float | None = None,
    high: float | None = None,
    pick: Callable[[Sequence[float]], float] = fmean,
) -> Row:
    """Return a `spark` row in which each value has its own style."""
    text = spark(values, width, low, high, pick)
    styles = [style_of(value) for value in _picked(values, width, pick)]
    styles = [TextStyle.PLAIN] * (len(text) - len(styles)) + styles
    return tuple(
        Span("".join([character for character, _ in run]), style)
        for style, run in groupby(zip(text, styles, strict=True), itemgetter(1))
    )


def _picked(values: Sequence[float], width: int, pick: Callable[[Sequence[float]], float]) -> Sequence[float]:
    count = len(values)
    if count <= width:
        return values
    return [pick(values[i * count // width : (i + 1) * count // width]) for i in range(width)]


def plain(text: str) -> str:
    """Make `text` render at the same width on every terminal.

    Control characters are escaped; line breaks and tabs become spaces. Emoji variation selectors and skin tones are
    removed: xterm, tmux and kitty draw such pairs 1, 2 or 4 cells wide, which breaks the frame to their right.
    """
    if text.isprintable() and (text.isascii() or _UNSURE.search(text) is None):
        return text
    shown = printable(_UNSURE.sub("", text.expandtabs(4)).replace("\n", " "))
    return "".join(c if c.isprintable() or "\ue000" <= c <= "\uf8ff" else "\ufffd" for c in shown)
