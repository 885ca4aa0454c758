"""Playback on the dashboard: the bar that shows and changes the position, and its keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.views import format as fm
from supervisor.views.model.replay import Recording, ReplayClock, next_fact
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.dashboard.panes import Panes
from supervisor.views.tui.shell.feeder import Answer, Feeder
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, between, cells, row
from supervisor.views.tui.widgets.panel import Panel

SCRUB = 1 / 50


class ReplayBar(Panel):
    """A bar that shows the playback position and speed."""

    framed = False

    def __init__(self, clock: ReplayClock, recording: Recording, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._clock = clock
        self._recording = recording

    @property
    def ready(self) -> bool:
        """Whether there is anything to show; always True."""
        return True

    def body(self, width: int, height: int) -> Sequence[Row]:  # noqa: ARG002 - one line, however high
        """Return the bar."""
        clock = self._clock
        now, span = clock.now(), max(clock.end_t - clock.start_t, 1e-9)
        glyph = "■" if now >= clock.end_t else "‖" if clock.paused else "▶"
        left = row(
            Span(f" {glyph} ", TextStyle.WARN),
            Span(self.tr("replay "), TextStyle.STRONG),
            Span(f"{clock.speed:g}× ", TextStyle.DIM),
            Span(f"{fm.time_of_day(now)} "),
        )
        over = f" {fm.duration(now - clock.start_t)} {self.tr('of')} {fm.duration(span)} "
        right = row(Span(over, TextStyle.DIM))
        room = width - cells(left) - cells(right)
        if room < 10:
            return [between(left, right, width)]
        at = round((now - clock.start_t) / span * (room - 1))
        marks = {round((t - clock.start_t) / span * (room - 1)) for t in self._recording.facts_t}
        spans = []
        for cell in range(room):
            if cell == at:
                spans.append(Span("●", TextStyle.WARN))
            elif cell in marks:
                spans.append(Span("┿", TextStyle.STRONG if cell < at else TextStyle.DIM))
            else:
                spans.append(Span("━", TextStyle.LIVE if cell < at else TextStyle.FRAME))
        return [(*left, *spans, *right)]


class Playback:
    """Actions that control playback.

    Args:
        recording: the recording to play.
        clock: the clock for recorded time.
    """

    def __init__(self, recording: Recording, clock: ReplayClock) -> None:
        self.recording, self.clock = recording, clock
        self.bar = ReplayBar(clock, recording, id="replay")
        self._plays = True
        self._panes: Panes
        self._wake: Callable[[], object]

    def begin(self, panes: Panes, feeder: Feeder[Snapshot]) -> None:
        """Start the playback clock."""
        self._panes = panes
        self._wake = lambda: feeder.submit(lambda: None)  # show the new moment at once
        panes.screen.call_after_refresh(self.clock.begin)

    def tick(self) -> None:
        """Advance the bar. When playback pauses or resumes, update the Space key's label."""
        if not self.clock.paused:
            self.bar.repaint()
        if self._plays is self.clock.paused:
            self._plays = not self._plays
            self.bar.repaint()
            self._panes.offer()

    def seek(self, t: float) -> None:
        """Jump to a time in the recording."""
        self.clock.seek(t)
        self._moved()

    def _moved(self) -> None:
        self.bar.repaint()
        self._wake()

    def action_play(self) -> None:
        """Toggle between playing and paused."""
        self.clock.toggle()
        self.tick()
        self._moved()

    def action_scrub(self, way: int) -> None:
        """Move back or forward by 1/50 of the recording."""
        self.seek(self.clock.now() + way * (self.clock.end_t - self.clock.start_t) * SCRUB)

    def action_fact(self, way: int) -> None:
        """Jump to the next or previous event."""
        found = next_fact(self.recording.facts_t, self.clock.now(), way)
        if found is None:
            self._panes.tell(Answer("no further fact" if way > 0 else "no earlier fact", None))
        else:
            self.seek(found)

    def action_speed(self, way: int) -> None:
        """Play faster or slower."""
        self.clock.faster(way)
        self.bar.repaint()
