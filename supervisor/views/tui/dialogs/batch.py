"""Another batch: the number is edited, the arithmetic is shown as it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, Label

from supervisor.job.batch import (
    BatchChange,
    BatchSpec,
    candidates,
    describe,
    describe_change,
    with_micro_batch,
)
from supervisor.job.errors import JobError
from supervisor.views.tui.dialogs.help import HelpLine, HelpScreen, lines_of
from supervisor.views.tui.dialogs.prompts import key_line
from supervisor.views.tui.screen_base import OverScreen
from supervisor.views.tui.widgets.panel import tr_of


class _Number(Input):
    """A field for digits: other keys, such as `?`, are the screen's."""

    def check_consume_key(self, key: str, character: str | None) -> bool:  # noqa: ARG002 - textual's own signature
        """Whether a key is typed into the field."""
        return character is not None and character.isdigit()


class BatchScreen(OverScreen[int | None]):
    """Asks for a micro-batch that keeps the global batch; None when it was left.

    Args:
        now: the batch of the newest attempt.
        suggested: the micro-batch that stands in the field.
        effect: what a restart does as the run stands, as one line.
        warning: shown at the first Enter, instead of doing it; empty: none.
        flag: the script's batch flag with its value, where it holds more than one rank's batch, or the config that is copied; empty otherwise.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "cancel", "cancel", tooltip="close; nothing is restarted"),
        Binding("up", "other(-1)", "larger", tooltip="the next larger number that divides", priority=True),
        Binding("down", "other(1)", "smaller", tooltip="the next smaller number that divides", priority=True),
        Binding("question_mark,f1", "help", "help", key_display="?", tooltip="this help", priority=True),
    ]

    def __init__(
        self,
        now: BatchSpec,
        suggested: int,
        effect: Callable[[], str] = str,
        warning: Callable[[], str] = str,
        flag: str = "",
    ) -> None:
        super().__init__()
        self.flag = flag
        self.warning = warning
        self.now = now
        self.suggested = suggested
        self.effect = effect
        self._has_warned = False

    def compose(self) -> ComposeResult:
        """What is, the field, what would be."""
        tr = tr_of(self)
        box = Vertical(classes="box")
        box.border_title = tr("restart with another batch")
        with box:
            yield Label(Content(tr(f"now: micro-batch {describe(self.now)}")), classes="quiet")
            if self.flag:
                yield Label(Content(tr(self.flag)), classes="quiet")
            with Horizontal(classes="field"):
                yield Label(tr("micro-batch per rank  "))
                yield _Number(str(self.suggested), compact=True, type="integer", max_length=9)
            yield Label("", id="effect")
            yield Label(Content(tr(self.effect())), classes="cost")
            yield self.stopped_line()
            yield Label(
                key_line(
                    tr, ("Enter", "restart"), ("↑ ↓", "others that divide"), ("?", "help"), ("Esc", "back")
                ),
                classes="quiet",
                id="keys",
            )

    def on_mount(self) -> None:
        """The effect of what stands in the field."""
        self._show(str(self.suggested))

    def renew(self) -> None:
        """What a restart does now; a warning stays."""
        if not self._has_warned:
            self.query_one(".cost", Label).update(Content(tr_of(self)(self.effect())))

    def on_input_changed(self, event: Input.Changed) -> None:
        """The effect of what was typed."""
        self._show(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the number, if it divides."""
        try:
            self._after(event.value)
        except JobError:
            self.app.bell()
            return
        warning = "" if self._has_warned else self.warning()
        if warning:
            text = tr_of(self)(f"Enter again: {warning}")
            self.query_one(".cost", Label).update(Content(text))
            self._has_warned = True
            return
        self.dismiss(int(event.value))

    def action_other(self, way: int) -> None:
        """The next number that divides, larger or smaller."""
        field = self.query_one(Input)
        known = candidates(self.now)
        current = int(field.value) if field.value.isdigit() else self.suggested
        if way > 0:
            found = next((number for number in known if number < current), known[-1])
        else:
            found = next((number for number in reversed(known) if number > current), known[0])
        field.value = str(found)
        field.cursor_position = len(field.value)

    def action_help(self) -> None:
        """The keys of this window."""
        group = "restart with another batch"
        enter = HelpLine(tr_of(self)(group), "Enter", tr_of(self)("restart with this micro-batch"))
        self.app.push_screen(HelpScreen([enter, *lines_of(self, group, self.BINDINGS)]))

    def action_cancel(self) -> None:
        """Close without a number."""
        self.dismiss(None)

    def _after(self, text: str) -> BatchSpec:
        if not text.isdigit():
            raise JobError("type how many samples a rank holds at once")
        return with_micro_batch(self.now, int(text), self.suggested)

    def _show(self, text: str) -> None:
        effect = self.query_one("#effect", Label)
        try:
            shown = describe_change(BatchChange(self.now, self._after(text)))
            effect.set_class(False, "-wrong")
        except JobError as error:
            shown = str(error)
            effect.set_class(True, "-wrong")
        effect.update(Content(tr_of(self)(shown)))
