"""Draws a row of a log, the same in the dashboard's pane and on the log screen: its writer, its tone, its matches."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.views import format as fm
from supervisor.views.logs.query import Query, Term
from supervisor.views.logs.reading import Page
from supervisor.views.logs.sources import Tone
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle
from supervisor.views.wording.translate import Tr

TONES = {
    Tone.PLAIN: TextStyle.PLAIN,
    Tone.WARN: TextStyle.WARN,
    Tone.BAD: TextStyle.BAD,
}
WHO_WIDTH = 9
MOST_WHO = 20
SIDE_CELLS = 16


def who_width(page: Page) -> int:
    """Cells for a line's writer; for several nodes the longest name's width, so that nothing moves."""
    if not page.nodes:
        return WHO_WIDTH
    numbers = {int(log.who) for log in page.logs if log.who.isdigit()}
    longest = who_text(tuple(map(str, sorted(numbers))) or ("0",), page.nodes)
    return min(max(len(longest), WHO_WIDTH), MOST_WHO)


def who_text(who: tuple[str, ...], nodes: tuple[int, ...] = ()) -> str:
    """The writer of a line, shortened: ``0-7 ×8``; for several nodes ``n1 r3``, ``n0-1 r0-15 ×16``."""
    if nodes:
        numbers = tuple(int(name) for name in who if name.isdigit())
        names = [*([f"r{fm.ranges(numbers)}"] if numbers else []), *(x for x in who if not x.isdigit())]
        count = max(len(who), len(nodes))
        return f"n{fm.ranges(nodes)} {','.join(names)}" + (f" ×{count}" if count > 1 else "")
    if len(who) == 1:
        return f"{who[0]:>5}"
    numbers = tuple(int(name) for name in who if name.isdigit())
    return f"{fm.ranges(numbers)} ×{len(who)}".rjust(5)


def nodes_text(page: Page) -> str:
    """The nodes whose logs are read, for a run on several; the title already shows a filter by node."""
    if not page.nodes or page.query.nodes:
        return ""
    if len(page.nodes) == page.node_count:
        return f"{page.node_count} nodes"
    return f"nodes {fm.ranges(page.nodes)} of {page.node_count}"


def text_spans(
    text: str, query: Query, searched: Query, style: TextStyle, plain: TextStyle
) -> Iterator[Span]:
    """The text with search matches in `MATCH`, filter matches in `LIVE`, and plain text in `style`."""
    base = style if plain is TextStyle.PLAIN else plain
    marks = [(a, b, TextStyle.MATCH) for term in searched.include for a, b in _places(term, text)]
    marks += [(a, b, TextStyle.LIVE) for term in query.include for a, b in _places(term, text)]
    at = 0
    for start, stop, its in sorted(marks, key=lambda mark: mark[:2]):
        if start >= at:
            if start > at:
                yield Span(text[at:start], base)
            yield Span(text[start:stop], its)
            at = stop
    if at < len(text) or not text:
        yield Span(text[at:], base)


def _places(term: Term, text: str) -> Iterator[tuple[int, int]]:
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = text
    at = 0
    while (found := term.find(text, lowered, at)) is not None:
        if found[1] > found[0]:
            yield found
        at = max(found[1], found[0] + 1)
        if at > len(text):
            return


def marked(spans: Row, searched: Query) -> Row:
    """The row with search matches in `MATCH`."""
    text = "".join(span.text for span in spans)
    found: list[Span] = []
    at = 0
    for start, stop in sorted(place for term in searched.include for place in _places(term, text)):
        if start >= at:
            found += [*cut_spans(spans, at, start), Span(text[start:stop], TextStyle.MATCH)]
            at = stop
    return (*found, *cut_spans(spans, at, len(text))) if found else spans


def lines_text(page: Page) -> str:
    """How many lines there are and how many a filter shows, as far as counted: ``3 of 148 lines``."""
    total, shown = page.line_count, page.shown
    many = "" if total is None else f"{fm.whole(total)} line{'s' if total != 1 else ''}"
    if shown is None:
        return many
    if shown.done_ratio < 1 and not shown.found:
        return f"none so far, {fm.part(shown.done_ratio)} searched"
    going = f" ({fm.part(shown.done_ratio)} searched)" if shown.done_ratio < 1 else ""
    if shown.found == total and not page.query.reads_text:  # all lines of its ranks
        return many
    return f"{fm.whole(shown.found)} of {many}{going}" if many else f"{fm.whole(shown.found)} lines{going}"


def found_text(page: Page, tr: Tr) -> str:
    """How many matches the search has, as far as counted, and which of them is in sight: ``/loss: 3 of 148``."""
    found = page.search
    if found is None:
        return ""
    going = f" ({fm.part(found.done_ratio)} searched)" if found.done_ratio < 1 else ""
    least = max(found.found, 1) if found.at_match else found.found  # the visible one may not be counted yet
    if found.ordinal:
        text = f"{fm.whole(found.ordinal)} of {fm.whole(found.found)}{going}"
    elif least:
        text = f"{fm.whole(least)}+ found{going}" if going else f"{fm.whole(least)} found"
    else:
        text = f"none so far, {fm.part(found.done_ratio)} searched" if going else "not found"
    return f"/{page.searched.typed}: {tr(text)}"


def cut_spans(spans: Row, start: int, stop: int) -> Row:
    """The characters from `start` to `stop`."""
    if not start and sum(len(span.text) for span in spans) <= stop:
        return spans
    kept: list[Span] = []
    at = 0
    for span in spans:
        low, high = max(start - at, 0), min(stop - at, len(span.text))
        if low < high:
            kept.append(Span(span.text[low:high], span.style))
        at += len(span.text)
    return tuple(kept)
