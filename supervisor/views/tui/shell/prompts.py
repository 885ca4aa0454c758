"""Prompts shown over the screen: a yes/no question, a line of text, or an offer to adopt or continue a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Label

from supervisor.views.tui.shell.feeder import Adopter, Answer
from supervisor.views.tui.shell.screen_base import OverScreen
from supervisor.views.tui.widgets.paint import plain
from supervisor.views.tui.widgets.panel import tr_of
from supervisor.views.wording.translate import Tr

if TYPE_CHECKING:
    from textual.screen import Screen

    from supervisor.run.ownership import Offer
    from supervisor.run.paths import RunPaths

SEARCH_HINT = "words, or /expression/"


def key_line(tr: Tr, *keys: tuple[str, str]) -> Content:
    """Format keys and their effects as a single line."""
    parts = [Content.assemble((key, "bold"), f" {tr(word)}") for key, word in keys]
    return Content("  ").join(parts)


class Confirm(OverScreen[bool]):
    """A yes/no question with its keys below. Only `y` means yes. `question` is a string or a function that returns one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,ctrl+c,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: Callable[[], str] | str) -> None:
        super().__init__()
        self._ask = question if callable(question) else lambda: question

    @property
    def question(self) -> str:
        """The current question."""
        return self._ask()

    def compose(self) -> ComposeResult:
        """Yield the question, wrapped as needed, and a line of keys."""
        tr = tr_of(self)
        with Vertical(classes="bar"):
            yield Label(Content(plain(tr(self.question))), classes="question")
            yield self.stopped_line()
            yield Label(key_line(tr, ("y", "yes"), ("n", "no")), classes="answers")

    def renew(self) -> None:
        """Update the question to match the current state."""
        self.query_one(".question", Label).update(Content(plain(tr_of(self)(self.question))))

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)


class AskLine(OverScreen[str | None]):
    """A dialog that asks for a line of text and returns it, or None if canceled. Typing replaces the initial text.

    Args:
        label: what to enter, in one or two words. The field takes the rest of the line.
        value: the initial text.
        hint: what the user may type, shown while the field is empty.
        changed: called with the text on every change; returns a one-line error or None. Enter does not accept text with an error.
        entered: called like `changed`, but only on Enter, so it may act on the text.
        about: returns lines to show above the field, such as the effect of the text.
    """

    # Handle Enter before the field does. Its own Submitted comes later, after the next letter is typed.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "cancel", "cancel"),
        Binding("enter", "submit", "submit", priority=True),
    ]

    def __init__(
        self,
        label: str,
        value: str = "",
        changed: Callable[[str], str | None] | None = None,
        hint: str = "",
        entered: Callable[[str], str | None] | None = None,
        about: Callable[[str], list[str]] | None = None,
    ) -> None:
        super().__init__()
        self.entered, self.about = entered, about
        self.label = label
        self.hint = hint
        self.value = value
        self.changed = changed

    def compose(self) -> ComposeResult:
        """Yield the label and the field, with the lines about the text and any error above them."""
        with Vertical(classes="asking"):
            yield Label(id="about")
            yield self.stopped_line()
            yield Label(id="wrong")
            with Horizontal(classes="bar"):
                yield Label(Content(f" {tr_of(self)(self.label)} "), classes="question")
                yield Input(self.value, tr_of(self)(self.hint), compact=True)

    def on_mount(self) -> None:
        """Show the lines about the initial text."""
        if self.about is not None:
            self.query_one("#about", Label).display = True
            self.renew()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Report the text after each change."""
        self._report(event.value)

    def _report(self, text: str) -> bool:
        """Report the text. Return True if it has no error."""
        if self.about is not None:
            lines = "\n".join(f" {tr_of(self)(line)}" for line in self.about(text))
            self.query_one("#about", Label).update(Content(lines))
        return self._show_trouble(self.changed(text) if self.changed is not None else None)

    def renew(self) -> None:
        """Update the lines about the text for the current state."""
        if self.about is not None:
            self._report(self.query_one(Input).value)

    def _show_trouble(self, trouble: str | None) -> bool:
        label = self.query_one("#wrong", Label)
        label.update(Content(f" {tr_of(self)(trouble)}" if trouble else ""))
        label.display = bool(trouble)
        return not trouble

    def action_submit(self) -> None:
        """Close with the text, unless it has an error."""
        text = self.query_one(Input).value
        if self._report(text) and (self.entered is None or self._show_trouble(self.entered(text))):
            self.dismiss(text)

    def action_cancel(self) -> None:
        """Close the dialog without returning any text."""
        self.dismiss(None)


def ask_over(screen: Screen[Any], line: AskLine, done: Callable[[str], object]) -> None:
    """Prompt for a line of text over a screen, then call `done` with it unless the user cancels."""

    def closed(text: str | None) -> None:
        if text is not None:
            done(text)

    screen.app.push_screen(line, closed)


class OfferScreen(Confirm):
    """A dialog that asks whether to adopt or continue a run. Only `y` means yes.

    Args:
        title: the question.
        offer: what would happen and what the user should know.
        why: the action that needs the run, or empty if there is none.
    """

    is_shown = False
    """Whether the question is visible."""

    def __init__(self, title: str, offer: Offer, why: str = "") -> None:
        super().__init__(title)
        self._lines = [why] if why else []
        self._offer = offer
        self._shown_t = math.inf

    def compose(self) -> ComposeResult:
        """Yield what would happen, any warnings, the question and the keys."""
        tr, lines = tr_of(self), [tr_of(self)(line) for line in self._lines]
        lines += [f"· {tr(action)}" for action in self._offer.actions]
        lines += [f"⚠ {tr(warning)}" for warning in self._offer.warnings]
        with Vertical(classes="bar"):
            for line in (*lines, tr(self.question)):
                yield Label(Content(plain(line)), classes="question")
            yield Label(key_line(tr, ("y", "yes"), ("n", "no")), classes="answers")

    def on_mount(self) -> None:
        """Start accepting an answer once the first frame is drawn."""
        self.call_after_refresh(self._appear)

    def _appear(self) -> None:
        self.is_shown, self._shown_t = True, Message().time

    def on_key(self, event: events.Key) -> None:
        """Ignore a `y` typed before the question appeared, because examining a run can take several seconds."""
        if event.key == "y" and event.time < self._shown_t:
            event.stop()

    def renew(self) -> None:
        """Do nothing, because the question never changes."""


class OfferWords(NamedTuple):
    """Messages shown while a run is being examined, as the question, and after the user answers no or yes."""

    looking: str
    title: str
    not_done: str
    doing: str


ADOPT = OfferWords("looking at what lives of the run…", "adopt the run?", "not adopted", "adopting the run…")
CONTINUE = OfferWords(
    "looking at how the run ended…",
    "start the next attempt?",
    "not continued",
    "starting the next attempt…",
)


def offer_first(
    screen: Screen[Any],
    submit: Callable[[Callable[[], None]], object],
    adopter: Adopter,
    run: RunPaths,
    words: OfferWords,
    tell: Callable[[Answer], object],
    *,
    why: str = "",
) -> None:
    """Show what adopting or continuing a run would do, and do it if the user agrees. `submit` runs jobs in the reader thread."""
    app = screen.app

    def ask(offer: Offer) -> None:
        if app.screen is not screen:
            return  # another screen was opened meanwhile
        if offer.refusals:
            tell(Answer(f"{words.not_done}: {offer.refusals[0]}", False))
            return

        def closed(yes: bool | None) -> None:
            if not yes:
                tell(Answer(words.not_done, None))
                return
            tell(Answer(words.doing, None))
            submit(lambda: adopter.adopt(run))

        app.push_screen(OfferScreen(words.title, offer, why), closed)

    def examine() -> None:
        app.call_later(ask, adopter.examine(run))

    tell(Answer(words.looking, None))
    submit(examine)
