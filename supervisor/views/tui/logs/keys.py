"""The keys of the log screen: what they are called in the footer, and their sentences in the help."""

from __future__ import annotations

from textual.binding import Binding, BindingType

GROUPS = {"go": "go", "which": "which lines", "take": "take along", "leave": "leave"}


def _key(
    key: str, action: str, word: str, shown: str, group: str, said: str, *, show: bool = True
) -> Binding:
    return Binding(
        key, action, word, key_display=shown, show=show, tooltip=said, id=f"log.{group}.{action}.{key}"
    )


# In the footer's order: what does not fit there is dropped from the end.
LOG_KEYS: list[BindingType] = [
    _key("question_mark,f1", "help", "help", "?", "leave", "this help"),
    _key("escape", "back", "back", "Esc", "leave", "clear selection, search, filter; then back to the dashboard"),
    _key("slash", "search", "search", "/", "go", "search: words in any case, or /an expression/"),
    _key("n", "match(-1)", "older", "n", "go", "the next match up, older"),
    _key("N", "match(1)", "newer", "N", "go", "the next match down, newer", show=False),
    _key(
        "f,backslash", "filter", "filter", "f", "which",
        "filter: words, -without, /expression/, r0-3, level:warn, stream:stderr",
    ),
    _key("space", "freeze", "freeze", "Space", "go", "stand still, or follow the newest line"),
    _key("colon", "jump", "line, time", ":", "go", "go to a line (812) or a time (14:52, 2026-11-21 14:52)"),
    _key("F", "failure", "failure", "F", "go", "go to the line that caused the failure"),
    _key("right_square_bracket", "rank(1)", "next rank", "]", "which", "the next rank alone", show=False),
    _key("left_square_bracket", "rank(-1)", "previous rank", "[", "which", "the previous rank", show=False),
    _key("o", "stream", "stream", "o", "which", "stdout, stderr, or both", show=False),
    _key("enter", "fold", "open", "Enter", "which", "open torchrun's own traceback, or fold it again", show=False),
    _key("left_parenthesis", "attempt(-1)", "attempt before", "(", "which", "the attempt before", show=False),
    _key("right_parenthesis", "attempt(1)", "attempt after", ")", "which", "the attempt after", show=False),
    _key("w", "wrap", "wrap", "w", "which", "wrap long lines, or cut them"),
    _key("y", "copy", "copy", "y", "take", "copy the line or the selection (V or a drag selects)"),
    _key("c", "chart", "chart", "c", "take", "show this line's step on the charts"),
    _key("e", "editor", "editor", "e", "take", "open the file in $EDITOR at this line", show=False),
    _key("p", "pager", "pager", "p", "take", "open the file in $PAGER at this line", show=False),
    _key("q,d,ctrl+c,ctrl+q", "leave", "leave", "q d", "leave", "leave stoker; nothing is ended by it"),
]  # fmt: skip
