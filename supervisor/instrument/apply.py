"""Puts the values of a plan into the ranks: into `sys.argv`, into `os.environ`, and into what a configuration file is parsed to.

``STOKER_APPLY`` holds the plan as JSON: `argv` (the whole command line of a rank in the first attempt), `options` (each with `words`,
`name`, `value` and `style`: space, equals or hydra), `environ` and `files` (each with `path`, `key` and `value`). No file is changed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from types import SimpleNamespace

from .settings import shown
from .wire import SPAWNED, command_line, quietly, wire

TYPE_CHECKING = False  # typing takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_OF_ONE_RANK = re.compile(r"--?local[_-]rank=\d+|-u")
"""Words in which the command lines of ranks of one attempt may differ."""


plan = SimpleNamespace(options=[], files=[], late=False)
"""What is to be changed in this process. `late`: the words wait until `sys.argv` is filled."""


def begin() -> None:
    """Change this process if it is one that the plan is for; before the first line of the script."""
    with quietly("apply"):
        given = json.loads(os.environ["STOKER_APPLY"])
        options = given.get("options", [])
        spawned = SPAWNED in getattr(sys, "orig_argv", getattr(sys, "argv", ()))
        if not _is_planned(command_line(), given["argv"], options):
            return
        plan.options = options
        plan.files = given.get("files", [])
        plan.late = spawned or not hasattr(sys, "argv")
        for name, value in given.get("environ", {}).items():
            _answer("env", name, os.environ.get(name), value)
            os.environ[name] = str(value)
        if not plan.late:
            _change_words()


def argv_is_there() -> None:
    """A watched module was imported: what could not be changed before is changed, once `sys.argv` is filled."""
    if plan.late and SPAWNED not in getattr(sys, "argv", [SPAWNED]):
        plan.late = False
        with quietly("apply"):
            _change_words()


def loaded(by: str, file: str | None, result: object) -> None:
    """A loader returns `result` for a file: the first time, the planned keys are set in it."""
    for entry in [entry for entry in plan.files if file is not None and _is_same(entry["path"], file)]:
        holder, last = _holder(result, entry["key"])
        if holder is not None:
            plan.files.remove(entry)
            _answer(by, entry["key"], holder.get(last), entry["value"])
            holder[last] = entry["value"]


def _answer(by: str, name: str, before: object, after: object) -> None:
    old, new = shown(name, before).get("value"), shown(name, after).get("value")
    wire.record("applied", by=by, name=name, before=old, after=new)


def _is_planned(own: list[str], recorded: list[str], options: list[Any]) -> bool:
    """Whether a command line is the recorded one but for the planned values. The interpreter may be named in another way."""
    rests = []
    for words in (own[1:], recorded[1:]):
        rest = [word for option, _, kept in _pieces(words, options) if option is None for word in kept]
        rests.append([word for word in rest if not _OF_ONE_RANK.fullmatch(word)])
    return len(rests[0]) == len(rests[1]) and all(map(_is_same, *rests))


def _is_same(one: str, other: str) -> bool:
    return one == other or (
        os.path.basename(one) == os.path.basename(other) and os.path.realpath(one) == os.path.realpath(other)
    )


def _pieces(words: list[str], options: list[Any]) -> Iterator[tuple[Any, str | None, list[str]]]:
    """A command line piece by piece: the option that is set, or None; its value; and the words, with the planned value in them."""
    index = 0
    while index < len(words):
        found = (_set_by(option, *words[index : index + 2]) for option in options)
        option, length, before, changed = next(filter(None, found), (None, 1, None, words[index : index + 1]))
        yield option, before, changed
        index += length


def _set_by(option: dict[str, Any], word: str, following: str = "--") -> Any:
    """The option, how many words set it, its value, and the words with the planned value; None if it is not `word` that sets it."""
    new = _text(option)
    head, equals, value = word.partition("=")
    if equals and head.lstrip("+") in option["words"]:
        return option, 1, value, [head + "=" + new]
    if option.get("style") == "hydra":
        return None
    if word in option["words"]:
        if option["value"] is True:
            return option, 1, "True", [word]
        if re.match(r"-[^\d.]", following):
            return option, 1, None, [word, new]
        return option, 2, following, [word, new]
    if word[:2] in option["words"] and word[2:].isdigit():
        return option, 1, word[2:], [word[:2] + new]
    return None


def _change_words() -> None:
    kept: list[str] = []
    absent = list(plan.options)
    for option, before, changed in _pieces(sys.argv[1:], plan.options):
        kept.extend(changed)
        if option is not None:
            _answer("argv", option["name"], before, option["value"])
            absent = [other for other in absent if other is not option]
    end = kept.index("--") if "--" in kept else len(kept)
    for option in absent:
        kept[end:end] = _added(option)
        _answer("argv", option["name"], None, option["value"])
    sys.argv[1:] = kept


def _text(option: dict[str, Any]) -> str:
    value = option["value"]
    return str(value).lower() if isinstance(value, bool) and option.get("style") == "hydra" else str(value)


def _added(option: dict[str, Any]) -> list[str]:
    word = next((word for word in option["words"] if word.startswith("--")), option["words"][0])
    is_switch = option["value"] is True
    if option.get("style") == "hydra" or (word.startswith("--") and not is_switch):
        return [word + "=" + _text(option)]
    return [word] if is_switch else [word, _text(option)]


def _holder(result: Any, key: str) -> tuple[Any, str]:
    """The dict that holds a key (its path has dots), or None; and the last part of the key."""
    if isinstance(result, dict) and key in result:
        return result, key
    *path, last = key.split(".")
    try:
        for part in path:
            result = result[int(part)] if isinstance(result, list) else result[part]
    except (LookupError, TypeError, ValueError):
        result = None
    return (result if isinstance(result, dict) else None), last
