"""The command palette: every dashboard key by name, generated from the live bindings."""

from __future__ import annotations

from functools import partial

from rich.cells import cell_len
from textual.binding import Binding
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.fuzzy import Matcher

from supervisor.views.tui.widgets.paint import fit
from supervisor.views.tui.widgets.panel import tr_of
from supervisor.views.wording.translate import Tr

KEY_CELLS = 7
NAME_CELLS = 17
# Actions without a key on this screen. Comparison has a key on the metrics page.
COMPARE = Binding("M", "compare", "compare", tooltip="metrics: all charts, any number of runs in each")
# The score of a sentence that contains the typed text. A match with a name scores more.
IN_SENTENCE = 0.5


class Palette(CommandPalette):
    """Textual's command palette, framed like the other dialogs."""

    def on_mount(self) -> None:
        """Set the titles."""
        tr, box = tr_of(self), self.query_one("#--container")
        box.border_title, box.border_subtitle = tr("commands"), tr("Enter does it · Esc closes")


class KeyCommands(Provider):
    """Provides the actions that are currently available, with their keys."""

    async def discover(self) -> Hits:
        """Yield all actions, in footer order."""
        tr = tr_of(self.screen)
        for binding in self._possible():
            yield DiscoveryHit(
                _line(binding, tr), partial(self.screen.run_action, binding.action), text=binding.description
            )

    async def search(self, query: str) -> Hits:
        """Yield commands whose names match the query, then those whose descriptions do. English words match in every language."""
        matcher, tr = self.matcher(query), tr_of(self.screen)
        for binding in self._possible():
            name, sentence = binding.description, binding.tooltip
            score = 1 + max(map(matcher.match, (name, tr(name))))
            if score == 1:
                is_found = query.lower() in f"{sentence} {tr(sentence)}".lower()
                score = IN_SENTENCE if is_found else 0.0
            if score:
                do = partial(self.screen.run_action, binding.action)
                yield Hit(score, _line(binding, tr, matcher), do, text=name)

    def _possible(self) -> list[Binding]:
        """Return the bindings whose actions are currently available, except the palette's own binding."""
        screen, offers = self.screen, getattr(self.screen, "offers", bool)
        live = {active.binding.action for active in screen.active_bindings.values() if active.enabled}
        bound = [binding for binding in screen.BINDINGS if isinstance(binding, Binding)]
        own = [each for each in bound if each.action in live and each.action != "commands" and offers(each)]
        more = [each for each in getattr(screen, "MORE_COMMANDS", ()) if screen.check_action(each.action, ())]
        if hasattr(screen, "action_compare") and all(each.action != "compare" for each in bound):
            more.append(COMPARE)
        return [*own, *more]


def _line(binding: Binding, tr: Tr, matcher: Matcher | None = None) -> Content:
    """Format a key, its name and its description on one line, as in the help."""
    name, message = tr(binding.description), tr(binding.tooltip)
    key = Content.styled(fit(binding.key_display or binding.key, KEY_CELLS), "bold")
    blank = " " * max(NAME_CELLS - cell_len(name), 1)
    # The typed text may match a word of the sentence.
    shown = [matcher.highlight(text) if matcher and matcher.match(text) else text for text in (name, message)]
    return Content.assemble(key, " ", shown[0], blank, shown[1])
