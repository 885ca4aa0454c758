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

from supervisor.job.config.files import MAX_BYTES, toml_values
from supervisor.job.errors import JobError

SUFFIXES: Final = (".yaml", ".yml", ".toml", ".json")
# Marks a key that is not in the file yet.
NEW: Final = "+"
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
        return dict(_scalars(_parse(name, text), ""))
    except (ValueError, RecursionError, JobError):
        return {}


def with_values(name: str, text: str, values: Iterable[tuple[str, str]]) -> str:
    """`text` with scalars set, comments and order kept; a key that begins with ``+`` is added.

    Raises:
        JobError: a key cannot be added, is written in a way that is not understood, or is not read back.
    """
    for key, value in values:
        text = _with_value(name, text, key, value)
    return text


def _with_new_value(name: str, text: str, key: str, value: str) -> str:
    """`text` with a value set under a key that is not there yet, within a mapping that is.

    Raises:
        JobError: the key is there, its mapping is not, or the file is written in a way that is not understood.
    """
    before = read_values(name, text)
    if key in before:
        raise JobError(f"{name}: {key} is set there already")
    at, line = _new_place(name, text, key, value)
    changed = text[:at] + line + text[at:]
    after = read_values(name, changed)
    if {k: v for k, v in after.items() if k != key} != before or str(after.get(key)) != value:
        raise JobError(f"{name}: {key} cannot be added safely: set it yourself")
    return changed


def _new_place(name: str, text: str, key: str, value: str) -> tuple[int, str]:
    """Where a new key goes, and the text that sets it."""
    import yaml

    parent, _, last = key.rpartition(".")
    if name.lower().endswith(".toml"):
        header = (
            re.search(rf"^\s*\[\s*{re.escape(parent)}\s*\][^\n]*\n", text, re.MULTILINE) if parent else None
        )
        if parent and header is None:
            raise JobError(f"{name}: no [{parent}] is there: set {key} yourself")
        return (header.end() if header else 0), f"{last} = {_written(value)}\n"
    try:
        node = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise JobError(f"{name}: its form is not understood: set {key} yourself") from error
    for part in parent.split(".") if parent else []:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((v for k, v in pairs if k.value == part), None)
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise JobError(f"{name}: no {parent or 'mapping'} is there: set {key} yourself")
    if node.flow_style:
        return node.start_mark.index + 1, f'"{last}": {_written(value)}, '
    first = node.value[0][0].start_mark
    return first.index, f"{last}: {_written(value)}\n{' ' * first.column}"


def _written(value: str) -> str:
    """A value as JSON, YAML and TOML all write it: a number or a truth value bare, a text, such as a path, in quotes."""
    bare = re.fullmatch(r"[-+]?(\d[\d_]*)(\.\d*)?([eE][-+]?\d+)?|true|false|null", value, re.IGNORECASE)
    return value if bare else json.dumps(value)


def _with_value(name: str, text: str, key: str, value: str) -> str:
    before = read_values(name, text)
    if key.startswith(NEW):
        return _with_new_value(name, text, key.removeprefix(NEW), value)
    if key not in before:
        raise JobError(f"{name}: no {key} is set there, so it cannot be changed")
    start, end = (_toml_span if name.lower().endswith(".toml") else _yaml_span)(name, text, key)
    changed = text[:start] + _written(value) + text[end:]
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
        parsed = toml_values(text)
    else:
        import yaml

        try:
            # SafeLoader's child: it makes plain data only, and of a tag that it does not know (!ref) the text behind it.
            parsed = yaml.load(text, Loader=_tolerant(yaml))  # noqa: S506 - see above
        except yaml.YAMLError as error:
            raise JobError(f"{name}: not valid YAML") from error
    return parsed if isinstance(parsed, dict) else {}


def _tolerant(yaml: Any) -> Any:
    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """The safe loader, for which an unknown tag is no error."""

    def plain(loader: Any, suffix: str, node: Any) -> object:
        del loader, suffix
        return str(node.value) if isinstance(node, yaml.ScalarNode) else None

    Loader.add_multi_constructor("", plain)
    return Loader


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
