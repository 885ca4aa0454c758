"""The keys of the dashboard: their words in the footer and their sentences in the help."""

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
# Actions that move recorded time, available only in a replay.
PLAYBACK = frozenset({"play", "scrub", "fact", "speed"})


def action_name(binding: Binding) -> str:
    """The action of a binding, as `actions.possible` names it: ``ask('hold')`` is "hold"."""
    name, _, argument = binding.action.partition("(")
    return argument.strip("')") if name in {"ask", "page"} else name


def _key(
    key: str, action: str, word: str, shown: str, text: str, *, group: str = "look", show: bool = True
) -> Binding:
    name = f"{group}.{action}.{key}"
    return Binding(key, action, word, key_display=shown, show=show, tooltip=text, id=name)


def _act(key: str, action: str, word: str, shown: str, text: str, *, show: bool = True) -> Binding:
    return _key(key, action, word, shown, text, group="act", show=show)


def _hidden(key: str, action: str, word: str, shown: str, text: str) -> Binding:
    """Only in the help."""
    return _key(key, action, word, shown, text, show=False)


def _recorded(key: str, action: str, word: str, shown: str = "") -> Binding:
    """For a recording, checked before the key's usual action."""
    name = f"recorded.{action}"
    return Binding(key, action, word, key_display=shown or None, show=bool(shown), priority=True, id=name)


WAITS = "while a hang, or a run that waits for you, is about to be ended: keep waiting"
ACCEPTS = "while the run waits for you: restart with what is on offer, such as a smaller batch"
ANSWERS = "while something is asked on the card: that answer"
CLOSES = "close page, search, filter, zoom; then back to the list"
MATCHES = "next match: up in the log, from its newest line; down a page"

# In the footer's order; keys that do not fit are dropped from the end.
KEYS: list[BindingType] = [
    _key("question_mark,f1", "help", "help", "?", "this help"),
    _act("A", "adopt", "adopt", "A", "adopt a run whose supervisor process is gone"),
    _act("enter", "accept", "accept", "Enter", ACCEPTS),
    _act("enter", "ask('start_now')", "now", "Enter", "during a back-off: start the next attempt now"),
    _act("escape", "ask('keep_waiting')", "keep waiting", "Esc", WAITS),
    _act(
        "escape", "ask('hold')", "stop the restart", "Esc", "during a back-off: no restart, a person decides"
    ),
    _key("escape", "back", "back", "Esc", CLOSES),
    *(_act(key, f"answer({at})", f"answer {key}", key, ANSWERS) for at, key in enumerate(ANSWER_KEYS)),
    _act("b", "smaller_batch", "batch", "b", "restart with another micro-batch, same global batch"),
    _act("e", "edit", "edit", "e", "restart with other arguments or environment"),
    _act("r", "continue_run", "continue", "r", "after its end: start the next attempt"),
    _act("r", "ask('restart')", "restart", "r", "restart as it was"),
    _act("s", "ask('stop')", "stop", "s", "stop gracefully: ask, then SIGTERM, then SIGKILL"),
    _key("o", "open_code", "code", "o", "your own line of the failure, in $EDITOR"),
    _act("S", "ask('stop_now')", "stop now", "S", "stop at once", show=False),
    _act("K", "ask('stacks')", "stacks", "K", "dump the Python stacks of all ranks"),
    _act("m", "note", "note", "m", "put a note on the run"),
    _key("v", "page('failure')", "why", "v", "the failure: evidence, what followed, what to do"),
    _hidden("y,Y", "copy", "copy", "y", "copy the page, card or pane"),
    _key("slash", "search", "search", "/", "search the page, else the log"),
    _key("f,backslash", "filter", "filter", "f", "filter the log by words and ranks"),
    _key("L", "open_log", "logs", "L", "the whole log: any size, any rank, search with a count"),
    _key("space", "freeze", "freeze", "Space", "freeze the log, or follow it again"),
    _key("z", "zoom", "zoom", "z", "the focused pane alone, or all panes"),
    _hidden("n", "match(1)", "next match", "n", MATCHES),
    _hidden("N", "match(-1)", "match before", "N", "match before: the other way"),
    # While a search is open, N belongs to it.
    _act("N", "name", "name", "N", "name the run; every command finds it by that name", show=False),
    _hidden("right_square_bracket", "rank(1)", "next rank", "]", "log of the next rank alone"),
    _hidden("left_square_bracket", "rank(-1)", "previous rank", "[", "log of the previous rank"),
    _hidden("right_curly_bracket", "node(1)", "next node", "}", "log of the next node alone"),
    _hidden("left_curly_bracket", "node(-1)", "previous node", "{", "log of the previous node"),
    _hidden("1", "pane('loss')", "loss", "1", "go to the loss, or the failure"),
    _hidden("2", "pane('devices')", "devices", "2", "go to the devices"),
    _hidden("3", "pane('ranks')", "ranks", "3", "go to the ranks; Enter shows a rank's log"),
    _hidden("4,l", "pane('log')", "log", "4 l", "go to the log"),
    _hidden("5,t", "pane('timeline')", "timeline", "5 t", "go to the timeline"),
    _key("M", "page('metrics')", "metrics", "M", "metrics: all charts, any number of runs in each"),
    _hidden("a", "page('advisories')", "advisories", "a", "stalls and other findings"),
    _hidden("p", "page('processes')", "processes", "p", "processes: pids, threads, the newest stacks"),
    _hidden("P", "page('preflight')", "pre-flight", "P", "what was found before the launch"),
    _hidden("i", "page('settings')", "settings", "i", "what runs: each setting and its origin"),
    _hidden("T", "app.next_theme", "theme", "T", "dark, light, or safe for colour-blind eyes"),
    _hidden("colon,ctrl+p", "commands", "commands", ":", "all commands, by name"),
    _key("q,d,ctrl+c,ctrl+q", "leave", "leave", "q d", "leave; no training is ended by it", group="leave"),
    _recorded("space", "play", "pause", "Space"),
    _recorded("left", "scrub(-1)", "back"),
    _recorded("right", "scrub(1)", "onward"),
    _recorded("n", "fact(1)", "next fact", "n"),
    _recorded("p", "fact(-1)", "fact before", "p"),
    _recorded("greater_than_sign", "speed(1)", "faster", ">"),
    _recorded("less_than_sign", "speed(-1)", "slower", "<"),
]
