"""Commands of the shell itself that change what it holds: its variables, arguments and folder; and what a few small programs print."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from supervisor.job.shell.expand import MARKS, Expander, State, Value, unknown, why_unknown
from supervisor.job.shell.shell_conditions import Status, status_of, test
from supervisor.job.shell.started import NotKnownError, Seen
from supervisor.job.shell.tree import Assign, Simple

_LONGEST: Final = 200_000  # a script that doubles a variable in a loop would fill the memory

Builtin = Callable[[Sequence[str], Simple, Expander, Seen], Status]


def set_variable(state: State, name: str, value: Value) -> None:
    """Sets a variable.

    Raises:
        NotKnownError: it grows beyond what a launch script needs.
    """
    if len(value) + sum(map(len, value)) > _LONGEST:
        raise NotKnownError(f"{state.name} is too long or starts too many others")
    state.variables[name] = value
    if "allexport" in state.options:
        state.exported.add(name)


def assign(expand: Expander, given: Assign) -> None:
    """``NAME=word`` and its like."""
    value, name = expand.assigned(given), given.name
    if given.element:
        value = unknown(f"${name}", f"{expand.at} sets an element of {name}", one=False)
    elif given.append:
        old = expand.state.variables.get(name, [] if given.is_array else "")
        if isinstance(value, list):
            value = [*([old] if isinstance(old, str) else old), *value]
        elif isinstance(old, list):
            value = [(old[0] if old else "") + value, *old[1:]]
        else:
            value = old + value
    set_variable(expand.state, name, value)


def _true(words: Sequence[str], _: Simple, __: Expander, ___: Seen) -> Status:
    return status_of(words[0] != "false")


def _test(words: Sequence[str], _: Simple, __: Expander, ___: Seen) -> Status:
    return test(words[1:-1] if words[0] == "[" and words[-1] == "]" else words[1:], None)


def _declare(words: Sequence[str], node: Simple, expand: Expander, _: Seen) -> Status:
    exported = words[0] == "export" or any(re.fullmatch(r"-\w*x\w*", word) for word in words[1:])
    names = [given.name for given in node.assigns]
    for given in node.assigns:
        assign(expand, given)
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            names.append(name)
            if equals:
                set_variable(expand.state, name, value)
    if exported and words[1:2] != ["-n"]:
        expand.state.exported.update(names)
    return Status.YES


def _unset(words: Sequence[str], _: Simple, expand: Expander, __: Seen) -> Status:
    for name in words[1:]:
        expand.state.variables.pop(name, None)
        expand.state.functions.pop(name, None)
    return Status.YES


def _cd(words: Sequence[str], _: Simple, expand: Expander, __: Seen) -> Status:
    state = expand.state
    named = next((word for word in words[1:] if not word.startswith("-") or word == "-"), None)
    target = (
        named if named is not None else "-" if words[0] == "pushd" else str(state.variables.get("HOME", ""))
    )
    why = why_unknown(target) or (f"{expand.at} goes back to an earlier folder" if target == "-" else None)
    if why is not None or state.cwd is None:
        state.cwd, state.why = None, why or state.why
    else:
        state.cwd = posixpath.normpath(posixpath.join(state.cwd, target))
    return Status.YES


def _popd(_: Sequence[str], __: Simple, expand: Expander, ___: Seen) -> Status:
    expand.state.cwd, expand.state.why = None, f"{expand.at} goes back to an earlier folder"
    return Status.YES


def _shift(words: Sequence[str], _: Simple, expand: Expander, __: Seen) -> Status:
    state, count = expand.state, words[1] if len(words) > 1 else "1"
    if state.args is None or not count.isdigit():
        state.args, state.why = None, state.why or f"{expand.at} shifts the arguments"
        return Status.MAYBE
    if int(count) > len(state.args):
        return Status.NO
    state.args = state.args[int(count) :]
    return Status.YES


def _set(words: Sequence[str], _: Simple, expand: Expander, __: Seen) -> Status:
    state, rest = expand.state, list(words[1:])
    while rest and re.fullmatch(r"[-+]\w+", rest[0]):
        flag = rest.pop(0)
        names = {"allexport"} if "a" in flag else set()
        names |= {rest.pop(0)} if flag.endswith("o") and rest else set()
        state.options = state.options | names if flag[0] == "-" else state.options - names
    if rest:
        expand.state.args = rest[1:] if rest[0] == "--" else rest
    return Status.YES


def _exit(words: Sequence[str], _: Simple, expand: Expander, seen: Seen) -> Status:
    expand.state.ended = True
    seen.ends.append(f"{expand.at} ends it with `{words[0]}` before a training is started")
    return status_of(len(words) < 2 or words[1] == "0")


def _read(words: Sequence[str], _: Simple, expand: Expander, __: Seen) -> Status:
    for name in words[1:]:
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            set_variable(expand.state, name, unknown(f"${name}", f"{expand.at} reads {name}", one=False))
    return Status.MAYBE


def _wait(_: Sequence[str], __: Simple, ___: Expander, seen: Seen) -> Status:
    for started in (seen.started, seen.aside):
        started[:] = [replace(one, background=False) for one in started]
    return Status.RAN


def _nothing(words: Sequence[str], _: Simple, __: Expander, ___: Seen) -> Status:
    return Status.MAYBE if words[0] == "getopts" else Status.YES


BUILTINS: Final[dict[str, Builtin]] = {
    **dict.fromkeys(("true", ":", "false"), _true),
    **dict.fromkeys(("[", "test"), _test),
    **dict.fromkeys(("export", "declare", "local", "typeset", "readonly"), _declare),
    **dict.fromkeys(("cd", "pushd"), _cd),
    **dict.fromkeys(("exit", "return"), _exit),
    **dict.fromkeys(("read", "mapfile", "readarray"), _read),
    **dict.fromkeys(
        ("getopts", "trap", "ulimit", "shopt", "umask", "alias", "continue", "break", "let", "dirs", "jobs", "disown"), _nothing
    ),
    "unset": _unset,
    "popd": _popd,
    "shift": _shift,
    "set": _set,
    "wait": _wait,
}  # fmt: skip


def printed(words: Sequence[str], state: State) -> str | None:
    """What a small program prints; None: not known."""
    if any(MARKS & set(word) for word in words):
        return None
    match list(words):
        case ["pwd", *_]:
            return state.cwd
        case ["echo", *rest] if not rest or not rest[0].startswith("-"):
            return " ".join(rest)
        case ["dirname", path] | ["dirname", "--", path]:
            return posixpath.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
        case ["basename", path]:
            return posixpath.basename(path.rstrip("/"))
        case ["basename", path, suffix]:
            return posixpath.basename(path.rstrip("/")).removesuffix(suffix)
        case ["realpath", path] | ["readlink", "-f", path] if state.cwd is not None:
            return posixpath.normpath(posixpath.join(state.cwd, path))
    return None
