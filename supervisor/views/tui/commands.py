"""The command palette: every key of the dashboard by its name, made of the live bindings."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rich.cells import cell_len
from textual import on
from textual.binding import Binding
from textual.command import Command, CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.fuzzy import Matcher
from textual.widgets import OptionList

from supervisor.views.tui.widgets.paint import fit
from supervisor.views.tui.widgets.panel import tr_of
from supervisor.views.wording.translate import Tr

KEY_CELLS = 7
NAME_CELLS = 17
# What other programs call it, by action.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "leave": ("quit", "exit", "close", "detach"),
    "ask('stop')": ("end", "terminate", "cancel"),
    "ask('stop_now')": ("kill", "abort"),
    "ask('hold')": ("pause",),
    "accept": ("yes",),
    "smaller_batch": ("micro-batch", "oom"),
    "edit": ("arguments", "environment"),
    "page('failure')": ("error", "traceback", "diagnose"),
    "page('metrics')": ("charts", "plot", "compare"),
    "page('settings')": ("config", "info"),
    "page('advisories')": ("warnings", "hang"),
    "search": ("find", "grep"),
    "filter": ("grep",),
    "sort": ("order",),
    "stop": ("kill", "end", "terminate", "cancel"),
    "replay": ("play",),
    "widen": ("everything",),
    "delete": ("remove", "rm"),
    "app.next_theme": ("colours", "colors"),
}
# An action without a key of its own on the screen: a theme by its name, and a comparison, which is a key of the metrics page.
THEME_COMMANDS = tuple(
    Binding("T", f"app.wear('{name}')", words, tooltip="dark, light, or safe for colour-blind eyes")
    for name, words in (("dark", "theme dark"), ("light", "theme light"), ("safe", "theme safe"))
)
COMPARE = Binding("M", "compare", "compare", tooltip="metrics: all charts, any number of runs in each")
# Words as they are typed come before letters of a name that only occur in this order (the fuzzy match).
IS_NAME, BEGINS, IN_NAME, IN_SYNONYM, IN_SENTENCE, FUZZY_NAME = 1.0, 0.95, 0.9, 0.8, 0.6, 0.5


class Palette(CommandPalette):
    """Textual's palette, in the frame of what else opens."""

    def on_mount(self) -> None:
        """Its titles."""
        tr, box = tr_of(self), self.query_one("#--container")
        box.border_title, box.border_subtitle = tr("commands"), tr("Enter does it · Esc closes")

    @on(OptionList.OptionSelected)
    def _stay_open(self, event: OptionList.OptionSelected) -> None:
        """A line that only says that nothing is named so does nothing: the words stay, to be corrected."""
        if isinstance(event.option, Command) and event.option.hit.command is _nothing:
            event.prevent_default()
            event.stop()


class KeyCommands(Provider):
    """What can be done now, with the key that does it at once."""

    async def discover(self) -> Hits:
        """All of it, in the footer's order."""
        tr = tr_of(self.screen)
        for binding in self._possible():
            yield DiscoveryHit(
                _line(binding, tr), partial(self.screen.run_action, binding.action), text=binding.description
            )

    async def search(self, query: str) -> Hits:
        """What matches the words typed: a part of a name, a synonym or a part of the sentence before fuzzy matches."""
        matcher, tr = self.matcher(query), tr_of(self.screen)
        verb, _, words = query.strip().partition(" ")
        possible, found = self._possible(), False
        for binding in possible:
            given = getattr(self.screen, f"{binding.action}_for", None)
            if given is not None and words and verb.lower() in {binding.description, tr(binding.description)}:
                told = replace(binding, tooltip=words)
                found = True
                yield Hit(IS_NAME, _line(told, tr), partial(given, words), text=binding.description)
                continue
            # English words are found in every language: they are what the documents call it.
            names = (tr(binding.description), binding.description)
            score = rank(query, matcher, names, (tr(binding.tooltip), binding.tooltip), binding.action)
            if score > 0:
                found = True
                do = partial(self.screen.run_action, binding.action)
                yield Hit(score, _line(binding, tr, matcher), do, text=binding.description)

        if not found and verb:
            near = nearest(query, possible, tr)
            text = tr(
                f"no command named {query.strip()} here"
                + (f"; nearest: {tr(near.description)}" if near else "")
            )
            yield Hit(IS_NAME, Content(text), _nothing, text=text)
            if near is not None:
                do = partial(self.screen.run_action, near.action)
                yield Hit(BEGINS, _line(near, tr), do, text=near.description)

    def _possible(self) -> list[Binding]:
        """Bindings whose action would do something now. The palette itself is left out."""
        offers = getattr(self.screen, "offers", bool)
        live = {active.binding.action for active in self.screen.active_bindings.values() if active.enabled}
        own = [
            binding
            for binding in self.screen.BINDINGS
            if isinstance(binding, Binding)
            and binding.action != "commands"
            and binding.action in live
            and offers(binding)
        ]
        compares = hasattr(self.screen, "action_compare")
        bound = any(
            isinstance(binding, Binding) and binding.action == "compare" for binding in self.screen.BINDINGS
        )
        more = getattr(self.screen, "MORE_COMMANDS", ())
        return [*own, *more, *([COMPARE] if compares and not bound else []), *THEME_COMMANDS]


def nearest(query: str, bindings: Sequence[Binding], tr: Tr) -> Binding | None:
    """The command that is spelt most like this, by one of its names; None: nothing is like it."""
    named = {
        name.lower(): binding
        for binding in reversed(bindings)
        for name in (*SYNONYMS.get(binding.action, ()), tr(binding.description), binding.description)
    }
    found = difflib.get_close_matches(query.strip().lower(), named, n=1)
    return named[found[0]] if found else None


def _nothing() -> None:
    """What a line does that only reports."""


def rank(
    query: str, matcher: Matcher, names: tuple[str, ...], sentences: tuple[str, ...], action: str
) -> float:
    """How well a command fits what was typed: 0 (not at all) to 1."""
    typed = " ".join(query.lower().split())
    if any(name.lower() == typed for name in names):
        return IS_NAME
    if any(name.lower().startswith(typed) for name in names):
        return BEGINS
    if any(all(word in name.lower() for word in typed.split()) for name in names):
        return IN_NAME
    if any(word.startswith(typed) for word in SYNONYMS.get(action, ())):
        return IN_SYNONYM
    if any(typed in sentence.lower() for sentence in sentences):
        return IN_SENTENCE
    named = max(map(matcher.match, names))
    return FUZZY_NAME * named / (1 + named)


def _line(binding: Binding, tr: Tr, matcher: Matcher | None = None) -> Content:
    """Key, name and sentence in one line, as in the help."""
    name, message = tr(binding.description), tr(binding.tooltip)
    key = Content.styled(fit(binding.key_display or binding.key, KEY_CELLS), "bold")
    blank = " " * max(NAME_CELLS - cell_len(name), 1)
    # What was typed may be a word of the sentence.
    shown = [matcher.highlight(text) if matcher and matcher.match(text) else text for text in (name, message)]
    return Content.assemble(key, " ", shown[0], blank, shown[1])
