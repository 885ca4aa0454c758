"""The run's past: attempts as one line, and the events of the timeline one by one."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.run.state import AttemptState, Tone
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.widgets.lists import ListPanel
from supervisor.views.tui.widgets.paint import EMPTY, Row, Span, TextStyle, cells, row
from supervisor.views.tui.widgets.panel import Panel
from supervisor.views.wording.kinds import end_of_request, unread_text
from supervisor.views.wording.translate import Tr

TONES = {
    Tone.INFO: TextStyle.DIM,
    Tone.GOOD: TextStyle.LIVE,
    Tone.WARN: TextStyle.WARN,
    Tone.BAD: TextStyle.BAD,
}
GLYPHS = {Tone.INFO: "·", Tone.GOOD: "✓", Tone.WARN: "!", Tone.BAD: "✗"}


class AttemptsBar(Panel):
    """All attempts on one line, by duration, with a rule between them."""

    framed = False
    uses_clock = True

    def body(self, width: int, height: int) -> Sequence[Row]:
        """The line."""
        if self.view is None or height < 1:
            return []
        attempts = self.view.snapshot.state.attempts
        if not attempts:
            return [row(Span(self.tr(" attempts  none yet"), TextStyle.DIM))]
        now = self.view.now
        head = row(Span(self.tr(" attempts "), TextStyle.DIM))
        shown = list(attempts[-6:])
        ends = [_end(attempt, now) for attempt in shown]
        texts = [_words(attempt, end, self.tr) for attempt, end in zip(shown, ends, strict=True)]
        while len(shown) > 1 and sum(map(cells, texts)) + 8 * len(shown) > width - cells(head):
            shown, ends, texts = shown[1:], ends[1:], texts[1:]
        room = width - cells(head) - sum(map(cells, texts)) - 5 * len(shown) + 2
        spans_s = [max(end - attempt.planned_t, 0.1) for attempt, end in zip(shown, ends, strict=True)]
        spans: list[Span] = [*head]
        if len(shown) < len(attempts):
            spans.append(Span("… ", TextStyle.DIM))
            room -= 2
        for attempt, span_s, text in zip(shown, spans_s, texts, strict=True):
            size = max(2, int(room * span_s / sum(spans_s)))
            spans += [
                *([Span(" │ ", TextStyle.FRAME)] if attempt is not shown[0] else []),
                Span(f"{attempt.number} ", TextStyle.STRONG),
                Span("━" * size, _style(attempt)),
                *text,
            ]
        return [tuple(spans)]


class TimelinePanel(ListPanel, can_focus=True):
    """The events, newest last; shows the newest until a person moves in it."""

    number = 5

    def __init__(self, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self.cursor = 1 << 30

    def inputs(self, snapshot: Snapshot) -> tuple[object, ...]:
        """The events."""
        return (snapshot.state.timeline,)

    def titles(self) -> tuple[Row, Row]:
        """How many there are."""
        if self.view is None:
            return EMPTY, EMPTY
        count = len(self.view.snapshot.state.timeline)
        facts = f"{count} fact{'s' if count != 1 else ''}"
        return row(Span(self.tr("timeline"), TextStyle.STRONG)), row(Span(self.tr(facts), TextStyle.DIM))

    def count(self) -> int:
        """One row per event, or a single row if there are none."""
        assert self.view is not None
        count = max(len(self.view.snapshot.state.timeline), 1)
        if not self.has_focus:
            self.cursor = count - 1
        return count

    def item(self, index: int, width: int) -> Row:  # noqa: ARG002 - panes clip their rows themselves
        """One event."""
        assert self.view is not None
        moments = self.view.snapshot.state.timeline
        if not moments:
            return row(Span(self.tr("nothing has happened yet"), TextStyle.DIM))
        moment = moments[index]
        loud = moment.tone in {Tone.BAD, Tone.WARN}
        return row(
            Span(f"{fm.time_of_day(moment.t)} ", TextStyle.DIM),
            Span(f"{GLYPHS[moment.tone]} ", TONES[moment.tone]),
            Span(self.tr.moment(moment), TONES[moment.tone] if loud else TextStyle.PLAIN),
        )


def _end(attempt: AttemptState, now: float) -> float:
    return next((t for t in (attempt.ended_t, attempt.gone_t) if t is not None), now)


def _style(attempt: AttemptState) -> TextStyle:
    if attempt.ended_t is None:
        return TextStyle.LIVE
    well = attempt.failure is None and (attempt.exit_code == 0 or _is_well(attempt))
    return TextStyle.DIM if well or attempt.ended_on_request else TextStyle.BAD


def _is_well(attempt: AttemptState) -> bool:
    """Whether nobody saw how it ended, and its log shows no failure."""
    judged = attempt.verdict is not None and not attempt.verdict_provisional
    return attempt.exit_code is None and judged and attempt.failure is None and not attempt.has_unread


def _words(attempt: AttemptState, end: float, tr: Tr) -> Row:
    """How it ended, or how long it has been running."""
    unknown = attempt.found_over and attempt.started_t is None
    # Once a log is no longer written, nobody knows how long the job continued.
    unknown = unknown or (attempt.quiet_since is not None and attempt.ended_t is None)
    span = "" if unknown else fm.duration(end - (attempt.started_t or attempt.planned_t))
    if attempt.ended_t is None:
        return row(Span("●", TextStyle.LIVE), Span(f" {span}", TextStyle.DIM))
    if attempt.failure is not None:
        return row(Span(f"✗ {attempt.failure}", TextStyle.BAD), Span(f" {span}", TextStyle.DIM))
    if attempt.ended_on_request:
        return row(Span(f"■ {tr(end_of_request(attempt))}"), Span(f" {span}", TextStyle.DIM))
    if attempt.exit_code == 0 and attempt.has_unread:
        return row(Span(f"! {tr(unread_text(attempt))}", TextStyle.WARN), Span(f" {span}", TextStyle.DIM))
    if attempt.exit_code == 0 or _is_well(attempt):
        seen = attempt.exit_code == 0 or (attempt.verdict is not None and attempt.verdict.shows_end)
        mark = Span("✓", TextStyle.LIVE) if seen else Span("○", TextStyle.WARN)
        return row(mark, Span(f" {span}", TextStyle.DIM))
    return row(Span("✗", TextStyle.WARN), Span(f" {span}", TextStyle.DIM))
