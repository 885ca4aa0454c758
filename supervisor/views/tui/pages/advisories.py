"""What is worth saying while a run is healthy: a stall now, then all advisories, newest first."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.run.events import StallFlagged
from supervisor.run.state import AttemptState
from supervisor.views import format as fm
from supervisor.views.tui.charts.live import not_finite
from supervisor.views.tui.dashboard.state_words import stall_text
from supervisor.views.tui.pages.page import Page, labelled, resumed_rows, section
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, row
from supervisor.views.tui.widgets.panel import View

TIME_CELLS = 10
_NOT_FINITE = (
    "it rarely recovers by itself: look at the data of these steps; a lower learning rate, a longer warm-up or gradient clipping helps, "
    "from a checkpoint before them"
)


class AdvisoriesPage(Page):
    """Nothing here is a failure; each line says what could be done."""

    heading = "advisories"
    uses_clock = True

    def rows(self, view: View, width: int) -> Sequence[Row]:
        """The page."""
        state = view.snapshot.state
        attempt = state.attempt
        rows: list[Row] = []
        if attempt is not None and attempt.stall is not None:
            rows += self._stall(attempt, attempt.stall, view.now, width)
        if lost := not_finite(view.snapshot):
            rows.append(row(Span(f"{self.tr('loss')}: {self.tr(lost)}", TextStyle.BAD)))
            rows += labelled("", self.tr(_NOT_FINITE), width, TextStyle.DIM, most=4, label_cells=0)
        rows += resumed_rows(state, width, self.tr)[0 if rows else 1 :]
        if not state.advisories and not rows:
            return [row(Span(self.tr("nothing to say: no sign of trouble was seen so far"), TextStyle.DIM))]
        if state.advisories:
            rows += section(self.tr, "newest first")[0 if rows else 1 :]
        for advisory in reversed(state.advisories):
            rows += labelled(
                fm.time_of_day(advisory.t), self.tr(advisory.text), width, most=4, label_cells=TIME_CELLS
            )
        return rows

    def _stall(self, attempt: AttemptState, stall: StallFlagged, now: float, width: int) -> list[Row]:
        """No progress: since when, how often it is normally made, what will be done, and where each rank is."""
        rows: list[Row] = [row(Span(self.tr(stall_text(stall, now)), TextStyle.WARN))]
        if stall.pace_s > 0:
            usual, is_gap = fm.seconds(stall.pace_s), stall.stage in {"step", "log"}
            text = f"normally every {usual}" if is_gap else f"normally takes {usual}"
            rows.append(row(Span(self.tr(text), TextStyle.DIM)))
        rows += labelled("", self.tr(_then(attempt, stall, now)), width, TextStyle.DIM, most=4, label_cells=0)
        if attempt.stacks is not None:
            rows += section(self.tr, "who stands where")
            rows += labelled("", self.tr(attempt.stacks.text), width, TextStyle.STRONG, most=6, label_cells=0)
            if attempt.stacks.collective:
                rows += labelled("", attempt.stacks.collective, width, TextStyle.DIM, most=4, label_cells=0)
        elif attempt.stack_note:
            rows += labelled("", self.tr(attempt.stack_note), width, TextStyle.DIM, most=3, label_cells=0)
        return rows


def _then(attempt: AttemptState, stall: StallFlagged, now: float) -> str:
    """What comes of a stall if it lasts."""
    flagged = attempt.only_flagged
    if attempt.kept is not None:
        return f"{attempt.kept.by} keeps waiting, so stoker won't end this stall"
    if attempt.countdown is not None:
        return f"ended as a hang in {fm.duration(max(0.0, attempt.countdown.until - now))}"
    if flagged is not None and flagged.until_s is None:
        return f"reported only, stoker won't end it: {flagged.why}; if it hangs, stop it with s"
    if stall.act_s is None:
        return "never ended by itself"
    after_s = max(stall.act_s, flagged.until_s or 0.0) if flagged is not None else stall.act_s
    return f"ended as a hang after {fm.duration(after_s)} at the earliest"
