"""The settings that a command line names, found and set: ``--name value``, ``--name=value``, ``-n value``, ``key=value``, ``KEY.NAME value``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

# yacs' keys (`CfgNode.merge_from_list`), each followed by its value: in capitals, or before a number; any other pair may be two files.
_PAIRED = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)+ .*|([A-Za-z_]\w*(\.\w+)+|[A-Z][A-Z_]+) \d+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Setting:
    """One ``--name value``, ``--name=value``, ``-n value``, ``key=value`` or yacs' ``TRAIN.LR value`` of a command line."""

    name: str
    value: str | None
    at: int
    joined: bool  # value in the same word


def set_value(args: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    """`args` with one flag set: in place and in the user's spelling, else appended as ``--name=value``.

    An empty value makes it a switch. A name without dashes is a ``key=value`` setting. Where a flag is
    given twice the last one counts for argparse, so all are set. A ``key=value`` setting whose value holds an equals sign
    (Lightning's ``epoch=3-step=40.ckpt``) is written in quotes: Hydra reads no second one outside of them.
    """
    if not name.startswith("-") and "=" in value and not _is_quoted(value):
        value = f'"{value}"' if "'" in value else f"'{value}'"
    result = list(args)
    found = [s for s in settings_of(args) if _same(s.name, name)]
    for setting in reversed(found):
        if not value:
            continue
        if setting.joined:
            result[setting.at] = f"{setting.name}={value}"
        elif setting.value is not None:
            result[setting.at + 1] = value
        else:
            result.insert(setting.at + 1, value)
    if not found:
        if not value:
            result.append(name)
        elif name.startswith("-") and not name.startswith("--"):
            result += [name, value]
        else:
            result.append(f"{name}={value}")
    return tuple(result)


def names_of(args: Sequence[str]) -> list[str]:
    """Every setting that a command line names, in order."""
    return [s.name for s in settings_of(args)]


def value_of(args: Sequence[str], name: str) -> str | None:
    """The last value that `args` give to a flag, or None."""
    return next(reversed(values_of(args, name)), None)


def values_of(args: Sequence[str], name: str) -> list[str | None]:
    """Every value that `args` give to a flag, in order; None for each time that it stands there as a switch."""
    return list(_values_of(tuple(args)).get(_spelled(name), ()))


def differing(*lines: Sequence[str]) -> list[tuple[str, tuple[str | None, ...]]]:
    """The settings that these command lines do not have alike, in order: a name as it is written first, and its value in each line.

    None: it does not stand there; empty: a switch. Of one that is given several times all values count.
    """
    known = [_values_of(tuple(args)) for args in lines]
    names = {_spelled(name): name for args in reversed(lines) for name in reversed(names_of(args))}
    order = dict.fromkeys(_spelled(name) for args in lines for name in names_of(args))
    found = []
    for spelled in order:
        values = tuple(
            " ".join(each or "" for each in values[spelled]) if spelled in values else None
            for values in known
        )
        if len(set(values)) > 1:
            found.append((names[spelled], values))
    return found


def settings_of(args: Sequence[str]) -> Sequence[Setting]:
    """Every setting of a command line, in order; what is neither a flag nor ``key=value`` is passed over."""
    return _settings_of(tuple(args))


@lru_cache(maxsize=8)  # each candidate for a batch setting asks for its value: 2,000 words took 60 s
def _settings_of(args: tuple[str, ...]) -> Sequence[Setting]:
    found: list[Setting] = []
    for at, word in enumerate(args):
        if word.startswith("-") and not _is_number(word):
            name, equals, value = word.partition("=")
            if equals:
                found.append(Setting(name, value, at, joined=True))
                continue
            ahead = args[at + 1] if at + 1 < len(args) else None
            is_value = ahead is not None and (not ahead.startswith("-") or _is_number(ahead))
            found.append(Setting(name, ahead if is_value else None, at, joined=False))
        elif _PAIRED.fullmatch(" ".join(args[at : at + 2])):
            found.append(Setting(word, args[at + 1], at, joined=False))
        else:
            match = re.fullmatch(r"\+{0,2}([A-Za-z_][\w./@]*)=(.*)", word, re.DOTALL)
            if match:
                value = match[2][1:-1] if _is_quoted(match[2]) else match[2]
                found.append(Setting(word.partition("=")[0], value, at, joined=True))
    return tuple(found)


def _is_quoted(value: str) -> bool:
    return len(value) > 1 and value[0] == value[-1] and value[0] in "'\""


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", word) is not None


@lru_cache(maxsize=8)  # asked for name by name: 120 kB of words took over 10 s
def _values_of(args: tuple[str, ...]) -> dict[str, list[str | None]]:
    found: dict[str, list[str | None]] = {}
    for setting in _settings_of(args):
        found.setdefault(_spelled(setting.name), []).append(setting.value)
    return found


def _spelled(name: str) -> str:
    """Dashes and underscores within a name are one to argparse's users; leading dashes are not."""
    return name.lstrip("+").replace("_", "-")


def _same(left: str, right: str) -> bool:
    return _spelled(left) == _spelled(right)
