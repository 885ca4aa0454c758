"""Restarts with a change: another batch, other arguments, other environment."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, Label, TextArea

from supervisor.job.arguments.command_line import set_value, settings_of
from supervisor.job.batch import (
    BatchChange,
    BatchSpec,
    candidates,
    describe,
    describe_change,
    with_micro_batch,
)
from supervisor.job.errors import JobError
from supervisor.text.redact import redact
from supervisor.views.tui.dialogs.help import HelpLine, HelpScreen, lines_of
from supervisor.views.tui.dialogs.prompts import key_line
from supervisor.views.tui.shell.screen_base import OverScreen
from supervisor.views.tui.widgets.panel import tr_of


class _Number(Input):
    """A field for digits: other keys, such as `?`, go to the screen."""

    def check_consume_key(self, key: str, character: str | None) -> bool:  # noqa: ARG002 - textual's own signature
        """Whether the field takes a key as text."""
        return character is not None and character.isdigit()


class BatchScreen(OverScreen[int | None]):
    """Asks for a micro-batch that keeps the global batch; None if canceled.

    Args:
        now: the batch of the newest attempt.
        suggested: the initial micro-batch in the field.
        effect: what a restart would do now, as one line.
        warning: shown at the first Enter instead of acting; empty: none.
        flag: the script's batch flag with its value, if it covers more than one rank's batch, or the config to copy; else empty.
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
        """The current batch, the field, the effect."""
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
        """Show the effect of the initial text."""
        self._show(str(self.suggested))

    def renew(self) -> None:
        """What a restart does now; a warning stays."""
        if not self._has_warned:
            self.query_one(".cost", Label).update(Content(tr_of(self)(self.effect())))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the effect of the typed text."""
        self._show(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the number if it divides."""
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
        """The next larger or smaller valid number."""
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


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHOWN_DIFFERENCES = 8
UNNAMED_PATH = "type the flag before the path: --flag PATH or key=PATH"


@dataclass(frozen=True, slots=True)
class Edited:
    """A person's changes: `argv` replaces everything after the script (None: unchanged), `env` is added.

    `with_copy`: the offered batch is set too, in a copy of a config.
    """

    argv: tuple[str, ...] | None
    env: dict[str, str]
    with_copy: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is not passed on automatically: its path, and the flag or key for it, if one is known."""

    path: str
    flag: str | None = None

    def put_into(self, text: str, at: int) -> tuple[str, int]:
        """The arguments `text` with the path inserted, and the new cursor position; it was at `at`.

        The path is the value of the known flag. Without one it goes after the cursor.

        Raises:
            ValueError: a quote is open.
        """
        if self.flag is not None:
            whole = shlex.join(set_value(shlex.split(text), self.flag, self.path))
            return whole, len(whole)
        before, behind = text[:at], text[at:]
        before += "" if before[-1:] in {"", " ", "="} else " "
        behind = behind if behind[:1] in {"", " "} else f" {behind}"
        return f"{before}{shlex.quote(self.path)}{behind}", len(before)

    def is_unnamed(self, argv: Sequence[str]) -> bool:
        """Whether the path is among the words, but not as the value of a flag or key."""
        values = [setting.value or "" for setting in settings_of(argv)]
        return any(self.path in word for word in argv) and not any(v.startswith(self.path) for v in values)


class BadEdit(Exception):  # noqa: N818 - named for what it is
    """The typed text is not a valid command line: one line."""


def parse_edit(before: Sequence[str], arguments: str, environment: str) -> Edited:
    """Parse the typed text as a change.

    Raises:
        BadEdit: a quote is not closed, a variable has no ``=``, or a value is a secret, which the journal
            would keep.
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
    return Edited(None if argv == tuple(before) else argv, env)


def differences(before: Sequence[str], edited: Edited) -> list[str]:
    """Lines with ``-`` and ``+``: removals and additions; a flag and its value stay together."""
    lines: list[str] = []
    if edited.argv is not None:
        old, new = _pairs(before), _pairs(edited.argv)
        matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
        for tag, old_from, old_to, new_from, new_to in matcher.get_opcodes():
            if tag != "equal":
                lines += [f"- {text}" for text in old[old_from:old_to]]
                lines += [f"+ {text}" for text in new[new_from:new_to]]
    return lines + [f"+ {name}={shlex.quote(value)}" for name, value in edited.env.items()]


def _pairs(words: Sequence[str]) -> list[str]:
    """``--lr 3e-4 --seed 1`` as two parts: a flag with the words that follow it."""
    found: list[str] = []
    for word in words:
        quoted = shlex.quote(word)
        opens = word.startswith("-") and not _is_number(word)
        if found and not opens and found[-1].startswith("-") and " " not in found[-1]:
            found[-1] += f" {quoted}"
        else:
            found.append(quoted)
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


class EditScreen(OverScreen[Edited | None]):
    """Asks for arguments and environment; None if canceled.

    Args:
        script: the script of the arguments.
        before: the words that would follow the script at the next launch.
        consequences: lines on the effect of a restart with other words (None: with `before`).
        checkpoint: a checkpoint that is not passed on automatically.
        proposed: the words with the offered change, the initial text of the field; None without one.
        ran: the words of the newest attempt, if `before` includes the change of an imminent restart; the shown difference is against these.
        copied: the offered change in words, if it is made in a copy of a config; else empty.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "cancel", "cancel"),
        Binding("enter", "submit", "restart", priority=True),
        Binding("tab", "other", "other field", priority=True),
        Binding("ctrl+r", "checkpoint", "checkpoint", priority=True),
        Binding("ctrl+o", "copied", "the change on offer", priority=True),
    ]

    def __init__(
        self,
        script: str,
        before: Sequence[str],
        consequences: Callable[[tuple[str, ...] | None], list[str]],
        checkpoint: Checkpoint | None = None,
        proposed: Sequence[str] | None = None,
        copied: str = "",
        ran: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.script = script
        self.before = tuple(before)
        self.consequences = consequences
        self.checkpoint = checkpoint
        self.proposed = tuple(before) if proposed is None else tuple(proposed)
        self.copied = copied
        self.ran = self.before if ran is None else tuple(ran)
        self._with_copy = bool(copied)
        self._has_put_path = False

    def compose(self) -> ComposeResult:
        """The two fields and the difference."""
        tr = tr_of(self)
        box = Vertical(classes="box")
        box.border_title = tr("restart with other arguments")
        with box:
            yield Label(Content(tr(f"what follows {self.script}")), classes="quiet")
            area = TextArea(shlex.join(self.before), soft_wrap=True, compact=True, id="arguments")
            area.highlight_cursor_line = False
            yield area
            if self.proposed != self.before:
                yield Label(Content(tr("the change on offer is made here: Ctrl-Z undoes it")), id="proposed")
            if self.copied:
                yield Label(Content(tr("the change on offer is made too: Ctrl-O leaves it out")), id="copied")
            yield Label(Content(tr("more environment: NAME=VALUE …")), classes="quiet")
            yield Input("", compact=True, id="environment")
            yield Label("", id="effect")
            yield Label("", id="consequences", classes="cost")
            yield self.stopped_line()
            found = [("Ctrl-R", "the checkpoint that was found")] if self.checkpoint else []
            keys = [("Enter", "restart"), ("Tab", "other field"), *found, ("Esc", "back")]
            yield Label(key_line(tr, *keys), classes="quiet", id="keys")

    def on_mount(self) -> None:
        """Start at the end of the arguments, with the offered change made as an undoable edit."""
        area = self.query_one(TextArea)
        if self.proposed != self.before:
            self._set_text(area, shlex.join(self.proposed))
        area.move_cursor(area.document.end)
        area.focus()
        self._show()

    def renew(self) -> None:
        """What a restart does now."""
        self._show()

    def on_text_area_changed(self, _event: TextArea.Changed) -> None:
        """Show the difference made by the typed text."""
        self._show()

    def on_input_changed(self, _event: Input.Changed) -> None:
        """Show the difference made by the typed text."""
        self._show()

    def action_submit(self) -> None:
        """Close with the change if it can be parsed."""
        try:
            edited = self._edited()
        except BadEdit:
            self.app.bell()
            return
        self.dismiss(edited)

    def action_other(self) -> None:
        """Go to the other field."""
        area, field = self.query_one(TextArea), self.query_one(Input)
        (area if field.has_focus else field).focus()

    def action_copied(self) -> None:
        """Drop the offered change, or make it again."""
        self._with_copy = bool(self.copied) and not self._with_copy
        self._show()

    def action_checkpoint(self) -> None:
        """Insert the checkpoint that was found."""
        if self.checkpoint is None:
            return
        area = self.query_one(TextArea)
        at = len(area.get_text_range(area.document.start, area.cursor_location))
        try:
            text, at = self.checkpoint.put_into(area.text, at)
        except ValueError:  # an open quote, which an error below reports
            self.app.bell()
            return
        self._has_put_path = True
        self._set_text(area, text)
        above = text[:at].split("\n")
        area.move_cursor((len(above) - 1, len(above[-1])))

    @staticmethod
    def _set_text(area: TextArea, text: str) -> None:
        """Replace the text as an edit: assigning it would clear the undo history."""
        area.replace(text, area.document.start, area.document.end)

    def action_cancel(self) -> None:
        """Close without a change."""
        self.dismiss(None)

    def _edited(self) -> Edited:
        edited = parse_edit(self.before, self.query_one(TextArea).text, self.query_one(Input).value)
        if (
            self._has_put_path
            and self.checkpoint is not None
            and self.checkpoint.is_unnamed(edited.argv or ())
        ):
            raise BadEdit(UNNAMED_PATH)
        return replace(edited, with_copy=self._with_copy)

    def _show(self) -> None:
        effect, tr = self.query_one("#effect", Label), tr_of(self)
        try:
            edited = self._edited()
            lines = [f"+ {tr(self.copied)}"] if edited.with_copy else []
            lines += differences(
                self.ran, replace(edited, argv=self.before if edited.argv is None else edited.argv)
            )
        except BadEdit as error:
            effect.set_class(True, "-wrong")
            effect.update(Content(tr(str(error))))
            return
        effect.set_class(False, "-wrong")
        lost = "\n".join(map(tr, self.consequences(edited.argv)))
        self.query_one("#consequences", Label).update(Content(lost))
        shown = lines[:SHOWN_DIFFERENCES]
        if len(lines) > len(shown):
            shown.append(tr(f"… {len(lines) - len(shown)} more"))
        styled = (
            Content.styled(f"{line}\n", "$error" if line.startswith("-") else "$success") for line in shown
        )
        effect.update(Content("").join(styled).rstrip() if shown else Content(tr("nothing is changed yet")))
