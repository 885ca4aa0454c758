"""The command palette: every dashboard key by name, generated from the live bindings."""

from __future__ import annotations

from dataclasses import replace
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
# For each action, its names in other programs, or the goal of the user.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "leave": ("quit", "exit", "close", "detach"),
    "ask('stop')": ("end", "terminate", "cancel", "kill", "abort", "halt"),
    "ask('hold')": ("pause",),
    "ask('start_now')": ("continue", "resume"),
    "ask('restart')": ("continue", "resume", "retry"),
    "accept": ("yes", "continue", "resume"),
    "smaller_batch": ("micro-batch", "oom"),
    "edit": ("arguments", "args", "environment"),
    "freeze": ("tail", "follow", "pause", "resume"),
    "open_log": ("jump", "goto", "wrap"),
    "name": ("rename", "label", "title"),
    "pane('loss')": ("smooth", "smoothing", "curve"),
    "pane('devices')": ("gpus", "memory", "vram"),
    "pane('ranks')": ("slow", "straggler"),
    "page('failure')": ("error", "traceback", "diagnose"),
    "page('metrics')": ("charts", "plot", "graphs", "compare", "smooth"),
    "page('settings')": ("config", "info"),
    "page('advisories')": ("warnings", "hang", "slow", "straggler"),
    "search": ("find", "grep"),
    "filter": ("grep",),
    "sort": ("order",),
    "stop": ("kill", "end", "terminate", "cancel", "abort", "halt"),
    "replay": ("play",),
    "play": ("pause", "resume", "continue"),
    "compare": ("diff",),
    "widen": ("everything",),
    "delete": ("remove", "rm"),
    "app.next_theme": ("colours", "colors"),
}
# Actions without a key on this screen. Comparison has a key on the metrics page.
COMPARE = Binding("M", "compare", "compare", tooltip="metrics: all charts, any number of runs in each")
# Scores for a match with a command's name, a part of the name, a synonym, a part of the sentence.
IS_NAME, IN_NAME, IN_OTHER, IN_SENTENCE = 1.0, 0.9, 0.8, 0.6


class Palette(CommandPalette):
    """Textual's palette in the frame of the other dialogs."""

    def on_mount(self) -> None:
        """Set the titles."""
        tr, box = tr_of(self), self.query_one("#--container")
        box.border_title, box.border_subtitle = tr("commands"), tr("Enter does it · Esc closes")


class KeyCommands(Provider):
    """A provider of the actions possible now, with their keys."""

    async def discover(self) -> Hits:
        """Yield all actions, in the footer's order."""
        tr = tr_of(self.screen)
        for binding in self._possible():
            yield DiscoveryHit(
                _line(binding, tr), partial(self.screen.run_action, binding.action), text=binding.description
            )

    async def search(self, query: str) -> Hits:
        """Yield commands that match the words by name, then by synonym, then by sentence."""
        matcher, tr = self.matcher(query), tr_of(self.screen)
        verb, _, words = query.strip().partition(" ")
        for binding in self._possible():
            given = getattr(self.screen, f"{binding.action}_for", None)
            # English words work in every language, because the documentation uses them.
            names = (tr(binding.description), binding.description)
            if given is not None and words and verb.lower() in {*names, *SYNONYMS.get(binding.action, ())}:
                told = replace(binding, tooltip=words)
                yield Hit(IS_NAME, _line(told, tr), partial(given, words), text=binding.description)
                continue
            score = rank(query, names, (tr(binding.tooltip), binding.tooltip), binding.action)
            if score > 0:
                do = partial(self.screen.run_action, binding.action)
                yield Hit(score, _line(binding, tr, matcher), do, text=binding.description)

    def _possible(self) -> list[Binding]:
        """Return bindings whose action is possible now, except the palette itself."""
        screen, offers = self.screen, getattr(self.screen, "offers", bool)
        live = {active.binding.action for active in screen.active_bindings.values() if active.enabled}
        bound = [binding for binding in screen.BINDINGS if isinstance(binding, Binding)]
        own = [each for each in bound if each.action in live and each.action != "commands" and offers(each)]
        more = [each for each in getattr(screen, "MORE_COMMANDS", ()) if screen.check_action(each.action, ())]
        if hasattr(screen, "action_compare") and all(each.action != "compare" for each in bound):
            more.append(COMPARE)
        return [*own, *more]


def rank(query: str, names: tuple[str, ...], sentences: tuple[str, ...], action: str) -> float:
    """Return how well a command matches the typed text, from 0 (no match) to 1."""
    typed = " ".join(query.lower().split())
    low = [name.lower() for name in names]
    if typed in low:
        return IS_NAME
    if any(all(word in name for word in typed.split()) for name in low):
        return IN_NAME
    if any(word.startswith(typed) for word in SYNONYMS.get(action, ())):
        return IN_OTHER
    return IN_SENTENCE if any(typed in sentence.lower() for sentence in sentences) else 0.0


def _line(binding: Binding, tr: Tr, matcher: Matcher | None = None) -> Content:
    """Return key, name and sentence in one line, as in the help."""
    name, message = tr(binding.description), tr(binding.tooltip)
    key = Content.styled(fit(binding.key_display or binding.key, KEY_CELLS), "bold")
    blank = " " * max(NAME_CELLS - cell_len(name), 1)
    # The typed text may match a word of the sentence.
    shown = [matcher.highlight(text) if matcher and matcher.match(text) else text for text in (name, message)]
    return Content.assemble(key, " ", shown[0], blank, shown[1])
