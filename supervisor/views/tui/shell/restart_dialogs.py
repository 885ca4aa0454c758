"""Dialogs for restarting with a different batch, arguments or environment."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, TextArea

from supervisor.job.batch import (
    BatchChange,
    BatchSpec,
    describe,
    describe_change,
    with_micro_batch,
)
from supervisor.job.errors import JobError
from supervisor.text.redact import redact
from supervisor.views.tui.shell.prompts import AskLine, key_line
from supervisor.views.tui.shell.screen_base import OverScreen
from supervisor.views.tui.widgets.panel import tr_of

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHOWN_DIFFERENCES = 8


def ask_batch(now: BatchSpec, suggested: int, effect: Callable[[], str], flag: str = "") -> AskLine:
    """Return a dialog that asks for a micro-batch that keeps the global batch.

    Args:
        now: the latest attempt's batch.
        suggested: the initial micro-batch in the field.
        effect: returns one line that says what a restart would do now.
        flag: a line about the script's batch flag if it covers more than one rank, or about the config to copy; may be empty.
    """

    def changed(text: str) -> str:
        """Describe the batch change. Raise `JobError` if the number does not divide the global batch."""
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise JobError("type how many samples a rank holds at once")
        return describe_change(BatchChange(now, with_micro_batch(now, int(text), suggested)))

    def wrong(text: str) -> str:
        try:
            changed(text)
        except JobError as error:
            return str(error)
        return ""

    def about(text: str) -> list[str]:
        change = [] if wrong(text) else [changed(text)]
        return [f"now: micro-batch {describe(now)}", *([flag] if flag else []), *change, effect()]

    return AskLine("micro-batch per rank", str(suggested), wrong, about=about)


@dataclass(frozen=True, slots=True)
class Edited:
    """What the user typed: everything after the script, plus any additional environment variables."""

    argv: tuple[str, ...]
    env: dict[str, str]


class BadEdit(Exception):  # noqa: N818 - a typing mistake, not a program error
    """Raised when the typed text is not a valid command line. The message is a single line."""


def parse_edit(arguments: str, environment: str) -> Edited:
    """Parse what the user typed.

    Raises:
        BadEdit: a quote is not closed, a variable has no ``=``, or a value is a secret, which would be
            kept in the journal.
    """
    try:
        argv = tuple(shlex.split(arguments))
        words = shlex.split(environment)
    except ValueError as error:
        raise BadEdit(f"{str(error).lower()}: close the quote") from error
    env: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise BadEdit(f"{word}: write variables as NAME=VALUE")
        if redact(name, value) != value:
            raise BadEdit(f"{name} holds a secret, which the journal would keep: start the job again with it")
        env[name] = value
    return Edited(argv, env)


def differences(before: Sequence[str], edited: Edited) -> list[str]:
    """Return removed (``-``) and added (``+``) lines, keeping each flag on the same line as its value."""
    found = difflib.ndiff(_pairs(before), _pairs(edited.argv))
    lines = [line for line in found if line[0] in "+-"]
    return lines + [f"+ {name}={shlex.quote(value)}" for name, value in edited.env.items()]


def _pairs(words: Sequence[str]) -> list[str]:
    """Group each flag with its value, so that ``--lr 3e-4 --seed 1`` becomes two strings."""
    found: list[str] = []
    for word in words:
        quoted = shlex.quote(word)
        opens = word.startswith("-") and not word.lstrip("-.")[:1].isdigit()  # not a negative number
        if found and not opens and found[-1].startswith("-") and " " not in found[-1]:
            found[-1] += f" {quoted}"
        else:
            found.append(quoted)
    return found


class EditScreen(OverScreen[Edited | None]):
    """A dialog for editing the arguments and environment. Returns None if canceled.

    Args:
        script: the script that takes the arguments.
        ran: what followed the script in the latest attempt; the edit is shown as a diff against it.
        proposed: the initial text, which is `ran` with the suggested or planned change applied.
        consequences: returns lines describing what a restart with the typed arguments would do.
        checkpoint: the arguments for a checkpoint that is not passed on automatically, or empty.
        left_out: a description of a suggested change that is not an argument, or empty.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "cancel", "cancel"),
        Binding("enter", "submit", "restart", priority=True),
        Binding("tab", "other", "other field", priority=True),
        Binding("ctrl+r", "checkpoint", "checkpoint", priority=True),
    ]

    def __init__(
        self,
        script: str,
        ran: tuple[str, ...],
        proposed: tuple[str, ...],
        consequences: Callable[[tuple[str, ...]], list[str]],
        checkpoint: str = "",
        left_out: str = "",
    ) -> None:
        super().__init__()
        self.script, self.ran, self.proposed = script, ran, proposed
        self.consequences = consequences
        self.checkpoint = checkpoint
        self.left_out = left_out

    def compose(self) -> ComposeResult:
        """Yield the two fields and the diff."""
        tr = tr_of(self)
        box = Vertical(classes="box")
        box.border_title = tr("restart with other arguments")
        with box:
            yield Label(Content(tr(f"what follows {self.script}")), classes="quiet")
            area = TextArea(shlex.join(self.proposed), soft_wrap=True, compact=True, id="arguments")
            area.highlight_cursor_line = False
            yield area
            if self.left_out:
                text = f"Enter on the card makes the change on offer, this does not: {self.left_out}"
                yield Label(Content(tr(text)), id="left_out")
            yield Label(Content(tr("more environment: NAME=VALUE …")), classes="quiet")
            yield Input("", compact=True, id="environment")
            yield Label("", id="effect")
            yield Label("", id="consequences", classes="cost")
            yield self.stopped_line()
            found = [("Ctrl-R", "the checkpoint that was found")] if self.checkpoint else []
            keys = [("Enter", "restart"), ("Tab", "other field"), *found, ("Esc", "back")]
            yield Label(key_line(tr, *keys), classes="quiet", id="keys")

    def on_mount(self) -> None:
        """Move the cursor to the end of the arguments."""
        area = self.query_one(TextArea)
        area.move_cursor(area.document.end)
        area.focus()
        self.renew()

    def on_text_area_changed(self, _event: TextArea.Changed) -> None:
        """Update the diff after the user types."""
        self.renew()

    def on_input_changed(self, _event: Input.Changed) -> None:
        """Update the diff after the user types."""
        self.renew()

    def action_submit(self) -> None:
        """Close and return the typed text if it can be parsed."""
        with suppress(BadEdit):
            self.dismiss(parse_edit(self.query_one(TextArea).text, self.query_one(Input).value))

    def action_other(self) -> None:
        """Move to the other field."""
        area, field = self.query_one(TextArea), self.query_one(Input)
        (area if field.has_focus else field).focus()

    def action_checkpoint(self) -> None:
        """Insert the available checkpoint at the cursor as a separate argument."""
        area = self.query_one(TextArea)
        before = area.get_text_range(area.document.start, area.cursor_location)
        area.insert(self.checkpoint if before[-1:] in {"", " ", "="} else f" {self.checkpoint}")

    def action_cancel(self) -> None:
        """Close without changing anything."""
        self.dismiss(None)

    def renew(self) -> None:
        """Update the diff and the effect of a restart."""
        effect, tr = self.query_one("#effect", Label), tr_of(self)
        try:
            edited = parse_edit(self.query_one(TextArea).text, self.query_one(Input).value)
        except BadEdit as error:
            effect.set_class(True, "-wrong")
            effect.update(Content(tr(str(error))))
            return
        effect.set_class(False, "-wrong")
        lost = "\n".join(map(tr, self.consequences(edited.argv)))
        self.query_one("#consequences", Label).update(Content(lost))
        lines = differences(self.ran, edited)
        shown = lines[:SHOWN_DIFFERENCES]
        if len(lines) > len(shown):
            shown.append(tr(f"… {len(lines) - len(shown)} more"))
        styled = (
            Content.styled(f"{line}\n", "$error" if line.startswith("-") else "$success") for line in shown
        )
        effect.update(Content("").join(styled).rstrip() if shown else Content(tr("nothing is changed yet")))
