"""What of a shell's state is not known any more: after ways of which one is taken, and after loops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from supervisor.job.shell.expand import MARKS, State, Value, unknown
from supervisor.job.shell.started import NotKnownError
from supervisor.job.shell.tree import Arithmetic, Assign, For, Node, first_words, walk


def merged(ends: Sequence[State], before: State, at: str) -> State:
    """One state for several that are possible."""
    live = [state for state in ends if not state.ended]
    if not live:
        return replace(before, ended=True)
    state = live[0]
    for name in {n for s in live for n in s.variables}:
        values = [s.variables.get(name) for s in live]
        if any(value != values[0] for value in values):
            why = f"{at} decides only at the start what {name} is"
            state.variables[name] = unknown(f"${name}", why, one=all(map(_is_one_word, values)))
    state.exported = set().union(*(s.exported for s in live))
    if any(s.cwd != state.cwd for s in live):
        state.cwd, state.why = None, f"{at} decides only at the start in which folder"
    if any(s.args != state.args for s in live):
        state.args, state.why = None, f"{at} decides only at the start which arguments are left"
    return state


def forget(state: State, node: Node, names: Sequence[str], why: str) -> None:
    """Makes unknown what a command would set."""
    found = [
        *names,
        *(n.name for n in walk(node) if isinstance(n, Assign)),
        *(n.name for n in walk(node) if isinstance(n, For)),
    ]
    for word, simple in first_words(node):
        if word in {"read", "getopts", "let", "unset", "mapfile", "readarray", "eval", "source", "."}:
            found += ["".join(p.text for p in w) for w in simple.words[1:]]
        if word in {"eval", "source", "."}:
            raise NotKnownError(f"{why.partition(' ')[0]} has {word!r} in a loop")
        if word in {"shift", "set"}:
            state.args, state.why = None, why
        if word in {"cd", "pushd", "popd"}:
            state.cwd, state.why = None, why
        if word in state.functions:
            forget(state, state.functions[word].body, (), why)
    for n in walk(node):
        if isinstance(n, Arithmetic):
            found += re.findall(r"[A-Za-z_]\w*", n.text)
    for name in found:
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            state.variables[name] = unknown(f"${name}", why, one=False)


def _is_one_word(value: Value | None) -> bool:
    """Whether a value is one word wherever it stands."""
    return isinstance(value, str) and bool(value) and not (MARKS | set(" \t\n")) & set(value)
