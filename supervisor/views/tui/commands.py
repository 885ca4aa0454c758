"""The command palette: every key of the dashboard by its name, made of the live bindings."""

from __future__ import annotations

from functools import partial

from rich.cells import cell_len
from textual.binding import Binding
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.fuzzy import Matcher

from supervisor.views.tui.dashboard.keys import KEYS
from supervisor.views.tui.widgets.paint import fit
from supervisor.views.tui.widgets.panel import tr_of
from supervisor.views.wording.translate import Tr

KEY_CELLS = 7
NAME_CELLS = 17
# A word in a name is meant sooner than one in a sentence.
NAMED = 2.0


class Palette(CommandPalette):
    """Textual's palette, in the frame of what else opens."""

    def on_mount(self) -> None:
        """Its titles."""
        tr, box = tr_of(self), self.query_one("#--container")
        box.border_title, box.border_subtitle = tr("commands"), tr("Enter does it · Esc closes")


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
        """What matches the words typed."""
        matcher, tr = self.matcher(query), tr_of(self.screen)
        for binding in self._possible():
            name, text = tr(binding.description), tr(binding.tooltip)
            # English words are found in every language: they are what the documents call it.
            named = max(map(matcher.match, (name, binding.description)))
            score = max(NAMED * named, *map(matcher.match, (text, binding.tooltip)))
            if score > 0:
                do = partial(self.screen.run_action, binding.action)
                yield Hit(score, _line(binding, tr, matcher), do, text=binding.description)

    def _possible(self) -> list[Binding]:
        """Bindings whose action would do something now. The palette itself is left out."""
        live = {active.binding.action for active in self.screen.active_bindings.values() if active.enabled}
        return [
            binding
            for binding in KEYS
            if isinstance(binding, Binding) and binding.action != "commands" and binding.action in live
        ]


def _line(binding: Binding, tr: Tr, matcher: Matcher | None = None) -> Content:
    """Key, name and sentence in one line, as in the help."""
    name, message = tr(binding.description), tr(binding.tooltip)
    key = Content.styled(fit(binding.key_display or binding.key, KEY_CELLS), "bold")
    blank = " " * max(NAME_CELLS - cell_len(name), 1)
    # What was typed may be a word of the sentence.
    shown = [matcher.highlight(text) if matcher and matcher.match(text) else text for text in (name, message)]
    return Content.assemble(key, " ", shown[0], blank, shown[1])
