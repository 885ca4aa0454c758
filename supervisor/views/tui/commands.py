"""The command palette: every key of the dashboard by its name, made of the live bindings."""

from __future__ import annotations

from functools import partial

from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Hits, Provider

from supervisor.views.tui.keys import KEYS


class KeyCommands(Provider):
    """What can be done now, with the key that does it at once."""

    async def discover(self) -> Hits:
        """All of it, in the footer's order."""
        for binding in self._possible():
            yield DiscoveryHit(
                _name(binding), partial(self.screen.run_action, binding.action), help=binding.tooltip
            )

    async def search(self, query: str) -> Hits:
        """What matches the words typed."""
        matcher = self.matcher(query)
        for binding in self._possible():
            score = max(matcher.match(_name(binding)), matcher.match(binding.tooltip))
            if score > 0:
                yield Hit(
                    score,
                    matcher.highlight(_name(binding)),
                    partial(self.screen.run_action, binding.action),
                    help=binding.tooltip,
                )

    def _possible(self) -> list[Binding]:
        """Bindings whose action would do something now. The palette itself is left out."""
        live = {active.binding.action for active in self.screen.active_bindings.values() if active.enabled}
        return [
            binding
            for binding in KEYS
            if isinstance(binding, Binding) and binding.action != "commands" and binding.action in live
        ]


def _name(binding: Binding) -> str:
    return f"{binding.description}  ({binding.key_display or binding.key})"
