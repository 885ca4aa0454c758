"""Formats the parts of a log page: each row's writer and text, with matches highlighted, and the titles. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.views import format as fm
from supervisor.views.logs import reading as lc
from supervisor.views.logs.query import Query, Term
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle
from supervisor.views.wording.translate import Tr

WHO_WIDTH = 9
MOST_WHO = 20


def logs_text(page: lc.Page, tr: Tr, *, brief: bool) -> str:
    """Describe which logs are shown, and how their lines are ordered. If `brief`, mention only an estimated order."""
    chosen = page.query.nodes
    logs = [log for log in page.logs if not chosen or log.node in chosen]
    logs = [log for log in logs if page.query.is_by(log.who) or log.is_mixed]
    numbers = tuple(int(log.who) for log in logs if log.who.isdigit())
    is_told = page.attempts > 1 and (not brief or page.attempt < page.attempts)
    attempt = tr(f"attempt {page.attempt} of {page.attempts}") if is_told else ""
    if brief:
        order = tr(page.merged_by) if "estimated" in page.merged_by else ""
        return " · ".join(part for part in (attempt, tr(nodes_text(page)), order) if part)
    if not page.merged_by:
        named = next((each.parts[0][0] for each in page.rows), page.alone)
        which = fm.short_path(str(page.logs[named].path)) if named is not None else ""
    else:
        which = (
            f"{'rank' if len(set(numbers)) == 1 else 'ranks'} {fm.ranges(tuple(set(numbers)))}"
            if numbers and not page.query.who  # the title already shows a rank filter
            else ""
        )
        merged = tr(f"merged by {page.merged_by}")
        which = f"{tr(which)}, {merged}" if which else merged
    return " · ".join(part for part in (attempt, tr(nodes_text(page)), which) if part)


def who_width(page: lc.Page) -> int:
    """Return the width of the writer column in cells. For multiple nodes, it fits the longest name."""
    if not page.nodes:
        return WHO_WIDTH
    numbers = {int(log.who) for log in page.logs if log.who.isdigit()}
    longest = who_text(tuple(map(str, sorted(numbers))) or ("0",), page.nodes)
    return min(max(len(longest), WHO_WIDTH), MOST_WHO)


def who_text(who: tuple[str, ...], nodes: tuple[int, ...] = ()) -> str:
    """Abbreviate a line's writer as ``0-7 ×8``, or for multiple nodes as ``n1 r3`` or ``n0-1 r0-15 ×16``."""
    if nodes:
        numbers = tuple(int(name) for name in who if name.isdigit())
        names = [*([f"r{fm.ranges(numbers)}"] if numbers else []), *(x for x in who if not x.isdigit())]
        count = max(len(who), len(nodes))
        return f"n{fm.ranges(nodes)} {','.join(names)}" + (f" ×{count}" if count > 1 else "")
    if len(who) == 1:
        return f"{who[0]:>5}"
    numbers = tuple(int(name) for name in who if name.isdigit())
    return f"{fm.ranges(numbers)} ×{len(who)}".rjust(5)


def nodes_text(page: lc.Page) -> str:
    """Describe which nodes' logs are being read in a multi-node run, or return "" if the title shows a node filter."""
    if not page.nodes or page.query.nodes:
        return ""
    if len(page.nodes) == page.node_count:
        return f"{page.node_count} nodes"
    return f"nodes {fm.ranges(page.nodes)} of {page.node_count}"


def text_spans(
    text: str, query: Query, searched: Query, style: TextStyle, plain: TextStyle
) -> Iterator[Span]:
    """Yield the text with search matches in `MATCH`, filter matches in `LIVE` and everything else in `style`."""
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
    """Return the row with search matches styled as `MATCH`."""
    text = "".join(span.text for span in spans)
    found: list[Span] = []
    at = 0
    for start, stop in sorted(place for term in searched.include for place in _places(term, text)):
        if start >= at:
            found += [*cut_spans(spans, at, start), Span(text[start:stop], TextStyle.MATCH)]
            at = stop
    return (*found, *cut_spans(spans, at, len(text))) if found else spans


def lines_text(page: lc.Page) -> str:
    """Describe how many lines are shown out of those counted so far, e.g. ``3 of 148 lines``."""
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


def found_text(page: lc.Page, tr: Tr) -> str:
    """Describe which match is visible and how many were counted so far, e.g. ``/loss: 3 of 148``."""
    found = page.search
    if found is None:
        return ""
    going = f" ({fm.part(found.done_ratio)} searched)" if found.done_ratio < 1 else ""
    least = max(found.found, 1) if found.at_match else found.found  # the visible match may not be counted yet
    if found.ordinal:
        text = f"{fm.whole(found.ordinal)} of {fm.whole(found.found)}{going}"
    elif least:
        text = f"{fm.whole(least)}+ found{going}" if going else f"{fm.whole(least)} found"
    else:
        text = f"none so far, {fm.part(found.done_ratio)} searched" if going else "not found"
    return f"/{page.searched.typed}: {tr(text)}"


def place_text(page: lc.Page, cursor: int) -> str:
    """Describe the cursor row's position in the log, in English."""
    number = page.numbers[cursor] if cursor < len(page.numbers) else None
    if page.line_count is not None and number is not None:
        return f"line {fm.whole(number)} of {fm.whole(page.line_count)}"
    size = page.size_bytes
    text = fm.memory(size) if size >= 1 << 20 else f"{size / 1024:.0f}K" if size >= 1 << 10 else f"{size} B"
    if not size:
        return "empty"
    return f"{page.place_ratio:.0%} of {text}" if page.rows else text  # no position without lines


def state_text(page: lc.Page) -> tuple[str, TextStyle]:
    """Describe whether the page follows new lines and how many lines are below it, in English."""
    below = fm.whole(page.below) if page.below is not None else "…"
    if page.at_cause:
        return f"at the failure · {below} below", TextStyle.BAD
    if page.following:
        return "following" if page.grows else "at the end", TextStyle.DIM
    if page.grows:
        return f"frozen · {below} below", TextStyle.WARN
    return f"{below} below", TextStyle.DIM


def cut_spans(spans: Row, start: int, stop: int) -> Row:
    """Slice a row from character `start` to `stop`."""
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
