"""The guided start as a form: one question at a time, what was found beside it, the job file before it is written."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Input, Label

from supervisor.job.errors import JobError
from supervisor.job.guided import GuidedStart, Question, Topic, command_of, job_file
from supervisor.text.redact import redact_text
from supervisor.views.appearance import USUAL, Appearance
from supervisor.views.tui.dialogs.prompts import key_line
from supervisor.views.tui.widgets.textual_theme import ThemedApp
from supervisor.views.wording.translate import words_in

# Below so many rows the box fills the terminal, and of what is known the latest stands there alone.
LOW_ROWS = 40
LATEST = 3
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Answer(Input):
    """The field. Keys act in its own queue, in the order in which they were typed: an answer that was typed ahead belongs to the next question."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "form('before')", "back"),
        Binding("up", "form('option', -1)", "option before"),
        Binding("down", "form('option', 1)", "next option"),
    ]

    async def action_submit(self) -> None:
        """Take what stands here."""
        self.action_form("answer")

    def action_form(self, name: str, *args: int) -> None:
        """Have the form act, here and now."""
        form = self.app
        assert isinstance(form, StartForm), "the field is the form's"
        getattr(form, f"action_{name}")(*args)


class StartForm(ThemedApp):
    """Asks until all is known, then shows the file. `write`: whether the person wants it; `begin`: and the run.

    Args:
        start: the course of the start.
        appearance: how it looks.
        remembered: the theme that was chosen last.
        can_begin: whether the run can be started from here.
        signals: SIGTERM and SIGHUP leave as Ctrl-C does, so that the terminal is given back whole.
    """

    CSS_PATH = "stoker.tcss"
    TITLE = "stoker"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "leave", "leave", priority=True),
        Binding("escape", "before", "back"),
        Binding("enter", "finish", "write it and start"),
        Binding("up", "scroll(-1)", "up"),
        Binding("down", "scroll(1)", "down"),
        Binding("w", "only_write", "write only"),
    ]

    def __init__(
        self,
        start: GuidedStart,
        *,
        appearance: Appearance = USUAL,
        remembered: str | None = None,
        can_begin: Callable[[], bool] = lambda: True,
        signals: bool = False,
    ) -> None:
        super().__init__(appearance, remembered)
        self.tr = words_in(appearance.spoken)
        self.start = start
        self.write = self.begin = False
        self._refused: str | None = None
        self._can_begin = can_begin
        self._signals = SIGNALS if signals else ()

    def compose(self) -> ComposeResult:
        """What is known, the question, what was found, the keys."""
        box = Vertical(classes="box", id="start")
        box.border_title = self.tr("a script you have")
        with box:
            yield Label(id="known")
            yield Label(id="asked", classes="group")
            yield Label(id="options")
            yield Answer(compact=True, id="answer")
            yield Label(id="effect", classes="-wrong")
            with VerticalScroll(id="found", can_focus=False):
                yield Label(id="text", classes="quiet")
            yield Label(id="keys", classes="quiet")

    def on_mount(self) -> None:
        """The first question."""
        for number in self._signals:
            asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self._show()

    def on_resize(self, event: Resize) -> None:
        """A low terminal shows less of what is known."""
        low = event.size.height < LOW_ROWS
        self.query_one("#start").set_class(low, "-low")
        self._show_known(low=low)

    def on_unmount(self) -> None:
        """Give the signals back."""
        for number in self._signals:
            asyncio.get_running_loop().remove_signal_handler(number)

    def action_answer(self) -> None:
        """Take what stands in the field. A key that was typed ahead of the last page does nothing there."""
        if self.start.question() is None:
            return
        value = self.query_one(Answer).value
        try:
            self.start.take(value)
        except JobError as error:
            self._refused = value
            self._tell(self.tr(redact_text(error.message)))
            self.bell()
            return
        self._show()

    def action_finish(self) -> None:
        """Write the file, and start where that can be done from here."""
        if self.start.question() is None:
            self.write, self.begin = True, self._can_begin()
            self.exit()

    def action_before(self) -> None:
        """The question before."""
        if self.start.back():
            self._show()

    def action_option(self, by: int) -> None:
        """Another of the options, or as far as the text below goes."""
        question, field = self.start.question(), self.query_one(Answer)
        if question is None or not question.options:
            self.action_scroll(by)
            return
        values = [option.value for option in question.options]
        at = values.index(field.value) + by if field.value in values else 0
        self._fill(values[at % len(values)])
        self._show_options(question)

    def action_scroll(self, by: int) -> None:
        """The text below, by rows."""
        self.query_one("#found", VerticalScroll).scroll_relative(y=by, animate=False)

    def action_only_write(self) -> None:
        """Write the file; the run is started later."""
        if self.start.question() is None:
            self.write = True
            self.exit()

    def action_leave(self) -> None:
        """Leave; nothing is written."""
        self.exit()

    def on_input_changed(self, _event: Input.Changed) -> None:
        """The option that stands in the field is marked; a refusal goes once another answer stands there."""
        if self.query_one(Answer).value != self._refused:
            self._tell("")
        if (question := self.start.question()) is not None:
            self._show_options(question)

    def _tell(self, text: str) -> None:
        label = self.query_one("#effect", Label)
        label.update(Content(text))
        label.display = bool(text)

    def _fill(self, value: str) -> None:
        field = self.query_one(Answer)
        field.value = value
        field.action_select_all()

    def _show(self) -> None:
        tr, question, field = self.tr, self.start.question(), self.query_one(Answer)
        self._show_known(low=self.size.height < LOW_ROWS)
        self._tell("")
        field.display = question is not None
        if question is None:
            self._show_end()
            self.set_focus(None)
            return
        self.query_one("#asked", Label).update(Content(tr(question.text)))
        self._fill(question.default)
        field.focus()
        self._show_options(question)
        self.query_one("#text", Label).update(self._found())
        choose = (("↑ ↓", "choose"),) if question.options else ()
        keys = key_line(tr, ("Enter", "next"), *choose, ("Esc", "back"), ("Ctrl-C", "leave"))
        self.query_one("#keys", Label).update(keys)

    def _show_known(self, *, low: bool) -> None:
        tr, answers = self.tr, self.start.answers
        facts = () if low and answers else self.start.around.lines()
        rows = [Content.styled(f"· {tr(line)}\n", "$dim") for line in facts]
        for asked, given in answers[-LATEST:] if low else answers:
            text = redact_text(given) or "-"
            rows.append(Content.assemble(("✓ ", "$success"), (f"{tr(asked.text)} ", "$dim"), f"{text}\n"))
        self.query_one("#known", Label).update(Content("").join(rows).rstrip())

    def _show_options(self, question: Question) -> None:
        now = self.query_one(Answer).value.strip()
        width = max((len(option.value) for option in question.options), default=0)
        rows = []
        for option in question.options:
            text = f"{option.value:<{width}}  {self.tr(option.text)}".rstrip()
            chosen = option.value == now
            rows.append(Content.styled(f"{'▸' if chosen else ' '} {text}\n", "$accent" if chosen else "$dim"))
        self.query_one("#options", Label).update(Content("").join(rows).rstrip())
        self.query_one("#options", Label).display = bool(rows)

    def _found(self) -> Content:
        """What was read of the script, once its arguments and ranks are known."""
        found, tr = self.start.found, self.tr
        if found is None or Topic.RANKS not in self.start.choices.settled:
            return Content("")
        rows = [Content.styled(tr("known so far:"), "$dim")]
        for label, text in found.lines:
            rows.append(Content.assemble((f"\n{tr(label)}: ", "$strong"), tr(redact_text(text))))
        return Content("").join(rows)

    def _show_end(self) -> None:
        """The file and the one command."""
        tr, choices = self.tr, self.start.choices
        self.query_one("#asked", Label).update(Content(tr(f"this will be {choices.file}")))
        self.query_one("#options", Label).display = False
        text = f"{job_file(choices)}\n{tr('to start it:')}\n  {command_of(choices, self.start.around)}"
        self.query_one("#text", Label).update(Content(text))
        begin = (
            (("Enter", "write it and start"), ("w", "write only"))
            if self._can_begin()
            else (("Enter", "write it"),)
        )
        self.query_one("#keys", Label).update(key_line(tr, *begin, ("Esc", "back"), ("Ctrl-C", "leave")))
