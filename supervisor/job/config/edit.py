"""A script's own config file: its keys by dotted name, and a changed copy of its text.

The file itself is never touched. A copy keeps comments and order, because only the characters of the value
are replaced; the result is parsed again, and anything but that one change is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from supervisor.job.errors import JobError

SUFFIXES: Final = (".yaml", ".yml", ".toml", ".json")
MAX_BYTES: Final = 256 * 1024
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """A changed copy that a launch needs: `copy` is `source` with `values` set, each (dotted key, text)."""

    source: str
    copy: str
    values: tuple[tuple[str, str], ...]


def config_words(args: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line, or values within them, that name a config file by their suffix."""
    found = []
    for word in args:
        value = word.partition("=")[2] if "=" in word else word
        if value.lower().endswith(SUFFIXES) and value not in found:
            found.append(value)
    return tuple(found)


def read_values(name: str, text: str) -> dict[str, Scalar]:
    """Every scalar of a config file by its dotted key; empty where it is not one that can be read."""
    try:
        parsed = _parse(name, text)
    except (ValueError, RecursionError, JobError):
        return {}
    return dict(_scalars(parsed, ""))


def with_values(name: str, text: str, values: Iterable[tuple[str, str]]) -> str:
    """`text` with scalars set, comments and order kept.

    Raises:
        JobError: a key is not there, is written in a way that is not understood, or holds no number.
    """
    for key, value in values:
        text = _with_value(name, text, key, value)
    return text


def _with_value(name: str, text: str, key: str, value: str) -> str:
    before = read_values(name, text)
    if key not in before:
        raise JobError(f"{name}: no {key} is set there, so it cannot be changed")
    start, end = (_toml_span if name.lower().endswith(".toml") else _yaml_span)(name, text, key)
    changed = text[:start] + value + text[end:]
    after = read_values(name, changed)
    same = {k: v for k, v in after.items() if k != key} == {k: v for k, v in before.items() if k != key}
    if not same or str(after.get(key)).lower() != value.lower():
        raise JobError(f"{name}: {key} is written in a way that is not changed safely: set it yourself")
    return changed


def _parse(name: str, text: str) -> Mapping[str, Any]:
    if len(text) > MAX_BYTES:
        raise JobError(f"{name}: too large for a config file")
    lower = name.lower()
    if lower.endswith(".json"):
        parsed = json.loads(text)
    elif lower.endswith(".toml"):
        import tomllib

        parsed = tomllib.loads(text)
    else:
        import yaml

        try:
            parsed = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise JobError(f"{name}: not valid YAML") from error
    return parsed if isinstance(parsed, dict) else {}


def _scalars(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Scalar]]:
    for key, value in values.items():
        if not isinstance(key, str) or "." in key or "#" in key:
            continue
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _scalars(value, f"{name}.")
        elif value is None or isinstance(value, str | int | float | bool):
            yield name, value


def _yaml_span(name: str, text: str, key: str) -> tuple[int, int]:
    """Where the value of `key` stands. JSON is read as YAML, which gives its places too."""
    import yaml

    # YAML knows no tabs; a blank in their place keeps every position, and JSON has none within strings.
    plain = text.replace("\t", " ") if name.lower().endswith(".json") else text
    try:
        node = yaml.compose(plain, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise JobError(f"{name}: {key}: its place in the file is not found: set it yourself") from error
    for part in key.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((v for k, v in pairs if k.value == part), None)
    if not isinstance(node, yaml.ScalarNode) or node.style in {"|", ">"}:
        raise JobError(f"{name}: {key}: its place in the file is not found: set it yourself")
    return node.start_mark.index, node.end_mark.index


def _toml_span(name: str, text: str, key: str) -> tuple[int, int]:
    table, _, last = key.rpartition(".")
    here, at = "", 0
    for line in text.splitlines(keepends=True):
        header = re.fullmatch(r"\s*\[\s*([\w.\-\"' ]+?)\s*\]\s*(?:#.*)?\n?", line)
        if header:
            here = header[1].replace('"', "").replace("'", "").replace(" ", "")
        setting = re.match(r"\s*([\w.\-]+)\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s#]+)", line)
        if setting and f"{here}.{setting[1]}".lstrip(".") in {key, f"{table}.{last}".lstrip(".")}:
            return at + setting.start(2), at + setting.end(2)
        at += len(line)
    raise JobError(f"{name}: {key}: its place in the file is not found: set it yourself")
