"""Reads a job file as a mapping, or a script's config file keyed by dotted name. Never executes their contents.

A job file is TOML, YAML, or a ``.py`` file that contains only assignments of literals and numeric arithmetic.
Every error is a single line that names the file and, if known, the line number.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from supervisor.job.errors import JobError
from supervisor.job.knobs.setting_names import SUFFIXES, Scalar

# A job file is a page of settings. A larger file is not a job file, and parsers need bounded input.
MAX_BYTES: Final = 256 * 1024
# Longer numbers are neither a batch size nor a learning rate.
MAX_BITS: Final = 128
MAX_DEPTH: Final = 8
MAX_ITEMS: Final = 20_000
# tomllib's time grows with the square of a dotted key's parts. A key with 100,000 parts (200 KB) took 2 min.
MAX_KEY_PARTS: Final = 128
_LONG_KEY: Final = rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}"""


def parse_config(name: str, data: bytes) -> dict[str, Any]:
    """Parse a job file in the format that its suffix indicates.

    Values are str, int, float, bool, None, or lists and string-keyed mappings of these.

    Raises:
        JobError: unknown suffix, invalid syntax, duplicate key, not a mapping, or code that is not constant.
    """
    if len(data) > MAX_BYTES:
        raise JobError(f"{name}: {len(data)} bytes is too large for a job file (at most {MAX_BYTES})")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JobError(f"{name}: not UTF-8 text (byte {error.start}): is this a job file?") from None
    match name.rpartition(".")[2].lower():
        case "toml":
            try:
                values = toml_values(text)
            except (ValueError, RecursionError) as error:
                # Besides TOMLDecodeError: an integer with too many digits for Python, or nesting beyond the stack.
                raise JobError(f"{name}: not valid TOML: {_one_line(error)}") from None
        case "yaml" | "yml":
            values = _yaml(name, text)
        case "py":
            values = _python(name, text)
        case _:
            raise JobError(f"{name}: a job file ends in .toml, .yaml, .yml or .py")
    _require_plain(name, values)
    return values


_HEADER: Final = re.compile(r"[ \t]*\[\[?[ \t]*([\w.-]+)[ \t]*\]")
_KEY: Final = re.compile(r"""([ \t]*)(?:"([^"]+)"|'([^']+)'|([\w.-]+))[ \t]*[=:]""")


@lru_cache(maxsize=4)
def _lines(text: str) -> Mapping[str, int]:
    """Return the 1-based line number of each key, under both its dotted name and its last part."""
    found: dict[str, int] = {}
    # In TOML, the table. In YAML and .py, the keys that enclose this line, by indentation.
    table, outer = "", [(-1, "")]
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            name = table = header[1]
        elif key is not None:
            indent = len(key[1])
            while outer[-1][0] >= indent:
                outer.pop()
            name = ".".join(filter(None, (table or outer[-1][1], key[2] or key[3] or key[4])))
            if len(outer) < MAX_DEPTH and not table:
                outer.append((indent, name))
        else:
            continue
        for spelt in (name, name.rpartition(".")[2]):
            found.setdefault(spelt, number)
    return found


def line_of(text: str, key: str) -> int | None:
    """Return the 1-based number of the line that sets `key`, falling back to its table or a key with the same last part."""
    lines = _lines(text)
    table, _, last = key.rpartition(".")
    return lines.get(key) or (lines.get(table) if table else None) or lines.get(last)


def toml_values(text: str) -> dict[str, Any]:
    """Parse TOML text of at most `MAX_BYTES`, in under a second.

    Raises:
        ValueError: the text is not valid TOML, or a key has too many parts.
        RecursionError: the text is nested too deeply for the stack.
    """
    import tomllib

    if found := re.search(_LONG_KEY, text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a key of more than {MAX_KEY_PARTS} parts (at line {line})")
    return tomllib.loads(text)


def _yaml(name: str, text: str) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """A safe loader that also rejects duplicate keys."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key, str) or key_node.tag == "tag:yaml.org,2002:merge":
                raise JobError(f"{name}:{line}: a key must be plain text")
            if key in seen:
                raise JobError(f"{name}:{line}: {key!r} is set twice")
            seen.add(key)
        built: dict[Any, Any] = loader.construct_mapping(node, deep=True)
        return {key.value: built[loader.construct_object(key)] for key, _ in node.value}

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        # The loader extends SafeLoader, so it creates only plain data.
        values = yaml.load(text, Loader=Loader)  # noqa: S506 - see above
    except yaml.YAMLError as error:
        # The error's text quotes the line, which may hold a secret. The problem alone does not.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f":{mark.line + 1}" if mark else ""
        raise JobError(f"{name}{where}: not valid YAML: {_one_line(problem or error)}") from None
    except (RecursionError, ValueError) as error:
        # ValueError: YAML reads 2024-99-99 as a date, or an integer has more digits than Python converts.
        raise JobError(f"{name}: not a job file: {_one_line(error)}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise JobError(
            f"{name}: a job file is a mapping of keys to values, this one is a {type(values).__name__}"
        )
    return values


def _python(name: str, text: str) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in strings are up to the file
            tree = ast.parse(text, filename=name)
    except SyntaxError as error:
        raise JobError(f"{name}:{error.lineno or 1}: not valid Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        # NUL bytes, or nesting beyond the parser's stack.
        raise JobError(f"{name}: not valid Python: {_one_line(error)}") from None
    values: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                continue
            case ast.Assign(targets=[ast.Name(id=key)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=key), value=ast.expr() as value):
                pass
            case _:
                what = "only `name = constant` is read here, never executed"
                raise JobError(f"{name}:{node.lineno}: {what}")
        if key in values:
            raise JobError(f"{name}:{node.lineno}: {key!r} is set twice")
        try:
            values[key] = _constant(value, values)
        except (ValueError, ArithmeticError, TypeError, RecursionError):
            what = "only constants, and + - * / on numbers, are read here, never executed"
            raise JobError(f"{name}:{node.lineno}: {key}: {what}") from None
    return values


_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def _constant(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Evaluate a literal, a previously assigned name, or arithmetic on these.

    Raises:
        ValueError, ArithmeticError, TypeError, RecursionError: the node is anything else, or is too large.
    """
    match node:
        case ast.Name(id=key) if key in known:
            return known[key]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            value = _OPERATORS[type(op)](*(_number(_constant(side, known)) for side in (left, right)))
            return _number(value)
        case _:
            return ast.literal_eval(node)


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ValueError("too large")
    return value


def _require_plain(name: str, values: Mapping[str, Any]) -> None:
    """Reject TOML or YAML values that no setting can have, such as dates, bytes, sets or endless nesting.

    Items are counted because YAML aliases and ``.py`` names let a short file describe a huge value.
    """
    waiting: list[tuple[str, Any, int]] = [(key, value, 0) for key, value in values.items()]
    seen = 0
    while waiting:
        key, value, depth = waiting.pop()
        seen += 1
        if seen > MAX_ITEMS or depth > MAX_DEPTH:
            raise JobError(f"{name}: {key}: too large or nested too deeply for a setting")
        if value is None or isinstance(value, bool | int | float | str):
            continue
        if isinstance(value, list):
            waiting.extend((key, item, depth + 1) for item in value)
        elif isinstance(value, dict):
            waiting.extend((f"{key}.{inner}", item, depth + 1) for inner, item in value.items())
        else:
            raise JobError(f"{name}: {key}: a {type(value).__name__} is no setting; quote it if it is text")


def config_words(args: Sequence[str]) -> tuple[str, ...]:
    """Return the command-line words, or values within them, that have the suffix of a config file."""
    found = []
    for word in args:
        value = word.partition("=")[2] if "=" in word else word
        if value.lower().endswith(SUFFIXES) and value not in found:
            found.append(value)
    return tuple(found)


def read_values(name: str, text: str) -> dict[str, Scalar]:
    """Return every scalar in a config file, keyed by dotted name, or nothing if the file cannot be parsed."""
    try:
        if name.lower().endswith(".json"):
            if len(text) > MAX_BYTES:
                return {}
            parsed = json.loads(text)
        else:
            parsed = parse_config(name, text.encode())
        return dict(_scalars(parsed, "")) if isinstance(parsed, dict) else {}
    except (ValueError, RecursionError, JobError):
        return {}


def _scalars(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Scalar]]:
    for key, value in values.items():
        if not isinstance(key, str) or "." in key or "#" in key:
            continue
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _scalars(value, f"{name}.")
        elif value is None or isinstance(value, str | int | float | bool):
            yield name, value


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]
