"""The keys of the dashboard: what they are called in the footer, and their sentences in the help."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from supervisor.views.tui.panels.possible_actions import ANSWER_KEYS

GROUPS = {
    "recorded": "recorded time",
    "move": "within this pane",
    "act": "act on the run",
    "look": "look",
    "leave": "leave",
}
MOMENTS = "a time (14:32), a span (+10m, -30s) or a share (50%) of the recording"
# The actions that move recorded time: a replay alone has them.
PLAYBACK = frozenset({"play", "scrub", "fact", "speed"})


def _key(
    key: str, action: str, word: str, shown: str, group: str, text: str, *, show: bool = True
) -> Binding:
    return Binding(
        key, action, word, key_display=shown, show=show, tooltip=text, id=f"{group}.{action}.{key}"
    )


def action_name(binding: Binding) -> str:
    """What a binding does, as `actions.possible` names it: ``ask('hold')`` is "hold"."""
    name, _, argument = binding.action.partition("(")
    return argument.strip("')") if name in {"ask", "page"} else name


# In the footer's order: what does not fit there is dropped from the end.
KEYS: list[BindingType] = [
    _key("question_mark,f1", "help", "help", "?", "look", "this help"),
    _key("A", "adopt", "adopt", "A", "act", "adopt a run whose supervisor process is gone"),
    _key(
        "enter",
        "accept",
        "accept",
        "Enter",
        "act",
        "while the run waits for you: restart with what is on offer, such as a smaller batch",
    ),
    _key("enter", "ask('start_now')", "now", "Enter", "act", "during a back-off: start the next attempt now"),
    _key(
        "escape",
        "ask('keep_waiting')",
        "keep waiting",
        "Esc",
        "act",
        "while a hang, or a run that waits for you, is about to be ended: keep waiting",
    ),
    _key(
        "escape",
        "ask('hold')",
        "stop the restart",
        "Esc",
        "act",
        "during a back-off: no restart, a person decides",
    ),
    _key("escape", "back", "back", "Esc", "look", "close page, search, filter, zoom; then back to the list"),
    *(
        _key(
            key,
            f"answer({at})",
            f"answer {key}",
            key,
            "act",
            "while something is asked on the card: that answer",
        )
        for at, key in enumerate(ANSWER_KEYS)
    ),
    _key(
        "b",
        "smaller_batch",
        "smaller batch",
        "b",
        "act",
        "restart with another micro-batch, same global batch",
    ),
    _key("e", "edit", "edit", "e", "act", "restart with other arguments or environment"),
    _key("r", "continue_run", "continue", "r", "act", "after its end: start the next attempt"),
    _key("r", "ask('restart')", "restart", "r", "act", "restart as it was"),
    _key("s", "ask('stop')", "stop", "s", "act", "stop gracefully: ask, then SIGTERM, then SIGKILL"),
    _key("o", "open_code", "code", "o", "look", "your own line of the failure, in $EDITOR"),
    _key("S", "ask('stop_now')", "stop now", "S", "act", "stop at once", show=False),
    _key("K", "ask('stacks')", "stacks", "K", "act", "dump the Python stacks of all ranks"),
    _key("m", "note", "note", "m", "act", "put a note on the run"),
    _key("v", "page('failure')", "why", "v", "look", "the failure: evidence, what followed, what to do"),
    _key("y,Y", "copy", "copy", "y", "look", "copy the page, card or pane", show=False),
    _key("slash", "search", "search", "/", "look", "search the page, else the log"),
    _key("f,backslash", "filter", "filter", "f", "look", "filter the log by words and ranks"),
    _key("L", "open_log", "logs", "L", "look", "the whole log: any size, any rank, search with a count"),
    _key("space", "freeze", "freeze", "Space", "look", "freeze the log, or follow it again"),
    _key("z", "zoom", "zoom", "z", "look", "the focused pane alone, or all panes"),
    _key(
        "n",
        "match(1)",
        "next match",
        "n",
        "look",
        "next match: up in the log, from its newest line; down a page",
        show=False,
    ),
    _key("N", "match(-1)", "match before", "N", "look", "match before: the other way", show=False),
    # While a search is open N is its key.
    _key("N", "name", "name", "N", "act", "name the run; every command finds it by that name", show=False),
    _key(
        "right_square_bracket", "rank(1)", "next rank", "]", "look", "log of the next rank alone", show=False
    ),
    _key(
        "left_square_bracket",
        "rank(-1)",
        "previous rank",
        "[",
        "look",
        "log of the previous rank",
        show=False,
    ),
    _key(
        "right_curly_bracket", "node(1)", "next node", "}", "look", "log of the next node alone", show=False
    ),
    _key(
        "left_curly_bracket", "node(-1)", "previous node", "{", "look", "log of the previous node", show=False
    ),
    _key("1", "pane('loss')", "loss", "1", "look", "go to the loss, or the failure", show=False),
    _key("2", "pane('devices')", "devices", "2", "look", "go to the devices", show=False),
    _key("3", "pane('ranks')", "ranks", "3", "look", "go to the ranks; Enter shows a rank's log", show=False),
    _key("4,l", "pane('log')", "log", "4 l", "look", "go to the log", show=False),
    _key("5,t", "pane('timeline')", "timeline", "5 t", "look", "go to the timeline", show=False),
    _key("M", "page('metrics')", "metrics", "M", "look", "metrics: all charts, any number of runs in each"),
    _key("a", "page('advisories')", "advisories", "a", "look", "stalls and other findings", show=False),
    _key(
        "p",
        "page('processes')",
        "processes",
        "p",
        "look",
        "processes: pids, threads, the newest stacks",
        show=False,
    ),
    _key("P", "page('preflight')", "pre-flight", "P", "look", "what was found before the launch", show=False),
    _key(
        "i", "page('settings')", "settings", "i", "look", "what runs: each setting and its origin", show=False
    ),
    _key("ctrl+up", "size(2, 0)", "taller log", "Ctrl ↑", "look", "more room for the log", show=False),
    _key("ctrl+down", "size(-2, 0)", "lower log", "Ctrl ↓", "look", "less room for the log", show=False),
    _key(
        "ctrl+left",
        "size(0, 4)",
        "wider right",
        "Ctrl ←",
        "look",
        "more room for the right column",
        show=False,
    ),
    _key(
        "ctrl+right",
        "size(0, -4)",
        "wider left",
        "Ctrl →",
        "look",
        "less room for the right column",
        show=False,
    ),
    _key(
        "T", "app.next_theme", "theme", "T", "look", "dark, light, or safe for colour-blind eyes", show=False
    ),
    _key("colon,ctrl+p", "commands", "commands", ":", "look", "all commands, by name", show=False),
    _key("q,d,ctrl+c,ctrl+q", "leave", "leave", "q d", "leave", "leave; no training is ended by it"),
    # Of a recording, before what the same keys do otherwise.
    Binding("space", "play", "pause", key_display="Space", priority=True, id="recorded.play"),
    Binding("left", "scrub(-1)", "back", show=False, priority=True, id="recorded.back"),
    Binding("right", "scrub(1)", "onward", show=False, priority=True, id="recorded.onward"),
    Binding("n", "fact(1)", "next fact", key_display="n", priority=True, id="recorded.next"),
    Binding("p", "fact(-1)", "fact before", key_display="p", priority=True, id="recorded.before"),
    Binding("greater_than_sign", "speed(1)", "faster", key_display=">", priority=True, id="recorded.faster"),
    Binding("less_than_sign", "speed(-1)", "slower", key_display="<", priority=True, id="recorded.slower"),
]
