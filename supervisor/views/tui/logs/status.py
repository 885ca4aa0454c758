"""The line below the log: where the page stands, what was found, and remarks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from textual.timer import Timer

from supervisor.views import format as fm
from supervisor.views.logs import commands as lc
from supervisor.views.tui.logs.rows import lines_text
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, between, row
from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.wording.translate import Tr

REMARK_S = 8.0


class LogStatus(Panel):
    """Where the page stands, what was found; a remark in its place for a while."""

    framed = False

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.page: lc.Page | None = None
        self.here: int | None = None
        self._remark: lc.Remark | None = None
        self._until: Timer | None = None

    @property
    def is_looking(self) -> bool:
        """Whether it says that something is going on."""
        return self._remark is not None and self._remark.good is None

    @property
    def ready(self) -> bool:
        """There is a page or a remark."""
        return self.page is not None or self._remark is not None

    def say(self, remark: lc.Remark | None) -> None:
        """Show a remark for a while; None: no more."""
        self._remark = remark
        if self._until is not None:
            self._until.stop()
        self._until = self.set_timer(REMARK_S, partial(self.say, None)) if remark is not None else None
        self.repaint()

    def end_remark(self) -> None:
        """Something else is asked for: what was said of the key before is old. What is going on stays."""
        if self._remark is not None and self._remark.good is not None:
            self.say(None)

    def settle(self) -> None:
        """What was going on is done."""
        if self._remark is not None and self._remark.good is None:
            self.say(None)

    def inner_keys(self) -> Sequence[tuple[str, str, str]]:
        """What continues can be given up."""
        return [("Esc", "give up", "back")] if self.is_looking else []

    def body(self, width: int, height: int) -> Sequence[Row]:  # noqa: ARG002 - one line, however high
        """The line."""
        page = self.page
        right = _found(page, self.tr) if page is not None else ()
        if self._remark is not None:
            style = {None: TextStyle.DIM, False: TextStyle.WARN, True: TextStyle.LIVE}[self._remark.good]
            return [between(row(Span(f" {self.tr(self._remark.text)}", style)), (*right, Span(" ")), width)]
        if page is None:
            return []
        return [between(row(Span(f" {self._place(page)}", TextStyle.DIM)), (*right, Span(" ")), width)]

    def _place(self, page: lc.Page) -> str:
        """Where the cursor stands; the per cent is of what the line is counted among."""
        parts = []
        here = self.here if self.here is not None and self.here < len(page.rows) else None
        number = page.numbers[here] if here is not None and here < len(page.numbers) else None
        kept = _kept_number(page, here) if here is not None else None
        if kept is not None and page.shown is not None:
            count = page.shown.found
            parts.append(f"line {fm.whole(kept)} of {fm.whole(count)} kept ({fm.part(kept / count)})")
            parts += [f"line {fm.whole(number)} of the file"] if number is not None else []
        elif page.line_count is not None and number is not None:
            count = page.line_count
            parts.append(f"line {fm.whole(number)} of {fm.whole(count)} ({fm.part(number / count)})")
            parts.append(_bytes(page.size_bytes))
        else:
            parts += [f"counting lines {fm.part(page.counted_ratio)}"] if page.counted_ratio < 1 else []
            at = f"{page.place_ratio:.0%} of " if page.rows else ""  # nowhere, where no line is kept
            parts.append(f"{at}{_bytes(page.size_bytes)}" if page.size_bytes else "empty")
        return " · ".join(map(self.tr, parts))


def _kept_number(page: lc.Page, here: int) -> int | None:
    """Which of the lines that the filter keeps is in row `here`, from 1; None: no filter, or not counted yet."""
    below = 0 if page.following and not page.at_cause else page.below
    if page.shown is None or page.shown.done_ratio < 1 or below is None:
        return None
    number = page.shown.found - below - sum(len(each.parts) for each in page.rows[here + 1 :])
    return number if number > 0 else None


def _found(page: lc.Page, tr: Tr) -> Row:
    spans: list[Span] = []
    if page.shown is not None:
        spans.append(Span(f"{tr(lines_text(page))}   ", TextStyle.LIVE))
    if page.search is not None:
        found = page.search
        going = f" ({fm.part(found.done_ratio)} searched)" if found.done_ratio < 1 else ""
        least = (
            max(found.found, 1) if found.at_match else found.found
        )  # the one in sight may not be counted yet
        if found.ordinal:
            text = f"{fm.whole(found.ordinal)} of {fm.whole(found.found)}{going}"
        elif not going:
            text = f"{fm.whole(least)} found"
        elif least:
            text = f"{fm.whole(least)}+ found{going}"
        else:
            text = f"none so far, {fm.part(found.done_ratio)} searched"
        spans.append(Span(f"/{page.searched.typed}: {tr(text)}", TextStyle.WARN))
    return tuple(spans)


def _bytes(size: int) -> str:
    return fm.memory(size) if size >= 1 << 20 else f"{size / 1024:.0f}K" if size >= 1 << 10 else f"{size} B"
