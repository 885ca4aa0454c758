"""The command palette: every key of the dashboard by its name, made of the live bindings."""

from __future__ import annotations

from functools import partial

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider

from supervisor.views.speech import Tr
from supervisor.views.tui.keys import KEYS
from supervisor.views.tui.widgets.panel import tr_of


class KeyCommands(Provider):
    """What can be done now, with the key that does it at once."""

    async def discover(self) -> Hits:
        """All of it, in the footer's order."""
        tr = tr_of(self.screen)
        for binding in self._possible():
            yield DiscoveryHit(
                _name(binding, tr), partial(self.screen.run_action, binding.action), help=tr(binding.tooltip)
            )

    async def search(self, query: str) -> Hits:
        """What matches the words typed."""
        matcher, tr = self.matcher(query), tr_of(self.screen)
        for binding in self._possible():
            name, said = _name(binding, tr), tr(binding.tooltip)
            # English words are found in every language: they are what the documents call it.
            score = max(map(matcher.match, (name, said, binding.description, binding.tooltip)))
            if score > 0:
                yield Hit(
                    score,
                    matcher.highlight(name),
                    partial(self.screen.run_action, binding.action),
                    help=said,
                )

    def _possible(self) -> list[Binding]:
        """Bindings whose action would do something now. The palette itself is left out."""
        live = {active.binding.action for active in self.screen.active_bindings.values() if active.enabled}
        return [
            binding
            for binding in KEYS
            if isinstance(binding, Binding) and binding.action != "commands" and binding.action in live
        ]


def _name(binding: Binding, tr: Tr) -> str:
    return f"{tr(binding.description)}  ({binding.key_display or binding.key})"
