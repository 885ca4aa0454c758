"""The dashboard of a replay: the same panes, and a bar that moves recorded time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from supervisor.views import format as fm
from supervisor.views.logs.commands import BadJumpError
from supervisor.views.model.replay import Recording, ReplayClock, is_moment, next_fact, parse_moment
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.charts.live import LossPanel
from supervisor.views.tui.dashboard.keys import KEYS
from supervisor.views.tui.dashboard.screen import Dashboard
from supervisor.views.tui.dialogs.help import HelpLine, lines_of
from supervisor.views.tui.dialogs.prompts import AskLine
from supervisor.views.tui.feeder import Feeder
from supervisor.views.tui.request_client import Answer, RequestClient
from supervisor.views.tui.widgets.paint import Row, Span, TextStyle, between, cells, row
from supervisor.views.tui.widgets.panel import Panel

MOMENTS = "a time (14:32), a span (+10m, -30s) or a share (50%) of the recording"
SCRUB = 1 / 50
TICK_S = 0.25


class ReplayBar(Panel):
    """Recorded time: where it is, how fast it goes; a click moves it."""

    framed = False
    uses_clock = True

    class Moved(Message):
        """A place on the bar was clicked: a share of the whole."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def __init__(self, clock: ReplayClock, recording: Recording, *, id: str) -> None:  # noqa: A002 - textual's own word
        super().__init__(id=id)
        self._clock = clock
        self._recording = recording
        self._track = (0, 1)

    @property
    def ready(self) -> bool:
        """There is always a moment."""
        return True

    def body(self, width: int, height: int) -> Sequence[Row]:  # noqa: ARG002 - one line, however high
        """The line."""
        clock = self._clock
        now, span = clock.now(), max(clock.end_t - clock.start_t, 1e-9)
        glyph = "■" if now >= clock.end_t else "‖" if clock.paused else "▶"
        left = row(
            Span(f" {glyph} ", TextStyle.WARN),
            Span(self.tr("replay "), TextStyle.STRONG),
            Span(f"{clock.speed:g}× ", TextStyle.DIM),
            Span(f"{fm.time_of_day(now)} "),
        )
        play = self.tr("  Space play" if clock.paused else "  Space pause")
        keys = play + self.tr("  ← → scrub  n p facts  < > speed") if width >= 100 else ""
        right = row(
            Span(f" {fm.duration(now - clock.start_t)} {self.tr('of')} {fm.duration(span)}", TextStyle.DIM),
            Span(f"{keys} ", TextStyle.DIM),
        )
        room = width - cells(left) - cells(right)
        if room < 10:
            return [between(left, right, width)]
        self._track = (cells(left), room)
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

    def on_click(self, event: events.Click) -> None:
        """Go there."""
        start, room = self._track
        if start <= event.x < start + room and room > 1:
            self.post_message(self.Moved((event.x - start) / (room - 1)))


class ReplayScreen(Dashboard):
    """A dashboard on recorded time. Nothing can be asked of a keeper that is gone.

    Args:
        recording: what is played.
        clock: recorded time.
        feeder: the reading thread; reads a `ReplayReader`.
        back: goes back to the list of runs; None where it was not opened from one.
    """

    is_recorded: ClassVar[bool] = True
    FIRST_ACTIONS: ClassVar[frozenset[str]] = frozenset({"play", "fact(1)", "fact(-1)", "speed(1)"})

    RECORDED: ClassVar[list[BindingType]] = [
        Binding("space", "play", "pause", key_display="Space", priority=True),
        Binding("left", "scrub(-1)", "back", show=False, priority=True),
        Binding("right", "scrub(1)", "onward", show=False, priority=True),
        Binding("n", "fact(1)", "next fact", key_display="n", priority=True),
        Binding("p", "fact(-1)", "fact before", key_display="p", priority=True),
        Binding("greater_than_sign", "speed(1)", "faster", key_display=">", priority=True),
        Binding("less_than_sign", "speed(-1)", "slower", key_display="<", priority=True),
    ]
    # A key here replaces all of the dashboard's on it: n is also the next match.
    BINDINGS: ClassVar[list[BindingType]] = [
        *RECORDED,
        *(key for key in KEYS if isinstance(key, Binding) and key.action == "match(1)"),
    ]

    MORE_COMMANDS: ClassVar[tuple[Binding, ...]] = (
        Binding("g", "jump", "go", key_display=" ", tooltip=MOMENTS),
        *Dashboard.MORE_COMMANDS,
    )

    def __init__(
        self,
        recording: Recording,
        clock: ReplayClock,
        feeder: Feeder[Snapshot],
        back: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(RequestClient(recording.run), feeder, clock.now, read_only=True, back=back)
        self._recording = recording
        self._replay = clock
        self._bar = ReplayBar(clock, recording, id="replay")
        self._plays = True

    def compose(self) -> ComposeResult:
        """The bar stands above the notice."""
        for widget in super().compose():
            if widget.id == "notice":
                yield self._bar
            yield widget

    def on_mount(self) -> None:
        """What is to come, then time begins to pass; the dashboard's own handler is called by Textual."""
        recording = self._recording
        first_t = recording.first_loss_t
        if first_t is not None:
            at, after = fm.time_of_day(first_t), fm.duration(max(first_t - recording.start_t, 0.0))
            text = f"the first loss comes at {at}, {after} after the start; → scrubs there"
            self.query_one("#loss", LossPanel).coming = text
        self.set_interval(TICK_S, self._move_bar)
        self.call_after_refresh(self._replay.begin)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Priority keys belong to this screen alone, not to what opens over it."""
        if action == "fact" and parameters == (1,) and self.check_action("match", (1,)):
            return False  # while something is searched its key goes to the next match
        if action in {"play", "scrub", "fact", "speed"}:
            return self.app.screen is self
        return super().check_action(action, parameters)

    def word_of(self, binding: Binding) -> str:
        """The key that stops recorded time lets it continue again."""
        if binding.action == "play" and self._replay.paused:
            return "play"
        return super().word_of(binding)

    def _help_lines(self) -> list[HelpLine]:
        """The keys of recorded time first."""
        return [*lines_of(self, "recorded time", ReplayScreen.RECORDED), *super()._help_lines()]

    def leave_word(self, snapshot: Snapshot) -> str:  # noqa: ARG002 - of whatever moment
        """Nothing continues but time."""
        return "leave"

    def action_play(self) -> None:
        """Stop, or continue."""
        self._replay.toggle()
        self._move_bar()
        self._moved()

    def action_scrub(self, way: int) -> None:
        """A fiftieth of the whole, back or onward."""
        clock = self._replay
        clock.seek(clock.now() + way * (clock.end_t - clock.start_t) * SCRUB)
        self._moved()

    def action_fact(self, way: int) -> None:
        """To the next fact, or the one before."""
        found = next_fact(self._recording.facts_t, self._replay.now(), way)
        if found is None:
            self.tell(Answer("no further fact" if way > 0 else "no earlier fact", None))
            return
        self._replay.seek(found)
        self._moved()

    def action_jump(self) -> None:
        """Ask for a moment."""

        def closed(text: str | None) -> None:
            if text:
                self.jump_for(text)

        self.app.push_screen(AskLine("go to", hint=MOMENTS), closed)

    def jump_for(self, words: str) -> None:
        """Go to a moment, as it is typed."""
        clock = self._replay
        try:
            clock.seek(parse_moment(words, clock.now(), clock.start_t, clock.end_t))
        except BadJumpError as error:
            self.tell(Answer(str(error), False))
            return
        self._moved()

    def command_of(self, typed: str) -> str:
        """A moment typed without a command is gone to."""
        return f"go {typed}" if is_moment(typed) else super().command_of(typed)

    def action_speed(self, way: int) -> None:
        """Faster or slower."""
        self._replay.faster(way)
        self._bar.repaint()

    def on_replay_bar_moved(self, message: ReplayBar.Moved) -> None:
        """A click on the bar."""
        clock = self._replay
        clock.seek(clock.start_t + message.share * (clock.end_t - clock.start_t))
        self._moved()

    def _moved(self) -> None:
        self._bar.repaint()
        self._feeder.submit(lambda: None)  # wakes the reading thread: the new moment is shown at once

    def _move_bar(self) -> None:
        if not self._replay.paused:
            self._bar.repaint()
        if self._plays is self._replay.paused:  # also at the end, where it stops by itself
            self._plays = not self._plays
            self._bar.repaint()
            self._offer()
