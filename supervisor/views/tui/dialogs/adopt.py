"""Before a run is taken over: exactly what that will do, and the question."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Label

from supervisor.run.access.ownership import Offer
from supervisor.views.tui.dialogs.overlay import OverScreen
from supervisor.views.tui.dialogs.prompts import key_line
from supervisor.views.tui.widgets.panel import tr_of


class AdoptScreen(OverScreen[bool]):
    """Asks once whether a run is to be adopted. Only `y` is yes.

    Args:
        offer: what it would do.
        why: what a person wanted that needs a keeper; empty: to adopt.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,ctrl+c,enter", "answer(False)", "no"),
    ]

    def __init__(self, offer: Offer, why: str = "") -> None:
        super().__init__()
        self.offer = offer
        self.why = why

    def compose(self) -> ComposeResult:
        """What is done, what should be known of it, the keys."""
        tr = tr_of(self)
        box = Vertical(classes="box")
        box.border_title = tr("adopt the run?")
        with box:
            if self.why:
                yield Label(Content(tr(self.why)), classes="quiet")
            for action in self.offer.actions:
                yield Label(Content(f"· {tr(action)}"))
            for warning in self.offer.warnings:
                yield Label(Content(f"⚠ {tr(warning)}"), classes="cost")
            yield Label(key_line(tr, ("y", "yes"), ("n", "no")), classes="quiet")

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)
