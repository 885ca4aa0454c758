"""Reads a Config from flags and a TOML or YAML file: flag > file > default."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

from trainer.config import Config, UsageError, check, shown, warnings_of

# Names of older scripts and of the cluster's YAML.
ALIASES: Final[Mapping[str, str]] = {
    "batch_size": "device_batch_size",
    "total_steps": "num_iterations",
    "distributed_backend": "backend",
}
# Keys and tables of a job file that speak of the launch; the trainer leaves them to the launcher.
LAUNCH_KEYS: Final = frozenset(
    {"nproc_per_node", "num_gpus", "nnodes", "torch_local_path", "expected_memory_gib"}
)
LAUNCH_TABLES: Final = frozenset({"run", "batch", "resume", "env", "policy", "hang", "instrument", "metrics"})
TRUE: Final = frozenset({"true", "1", "yes", "on"})
FALSE: Final = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Effective:
    """A Config; by key, where each value that is not a default came from; and what is allowed but hardly meant, a line each."""

    config: Config
    origins: Mapping[str, str]
    warnings: Sequence[str] = ()


def types() -> dict[str, type]:
    """Every key and its type, in the order of the dataclass."""
    hints = get_type_hints(Config)
    return {f.name: hints[f.name] for f in fields(Config)}


def read(argv: Sequence[str]) -> Effective:
    """The effective settings of a command line.

    Raises:
        UsageError: an unknown flag or key, an unreadable file, or values of the wrong type or out of range, a line for each.
    """
    problems: list[str] = []
    given: dict[str, str] = {}  # keys as they were spelled
    try:
        flags, path = _flags(argv, problems, given)
        from_file = _file(Path(path), problems, given) if path is not None else {}
    except UsageError as error:
        raise UsageError("\n".join([*problems, str(error)])) from None
    origins = {**dict.fromkeys(from_file, path or ""), **dict.fromkeys(flags, "flag")}
    config = replace(Config(), **{**from_file, **flags})
    try:
        check(config)
    except UsageError as error:
        problems += [_placed(line, origins, path, given) for line in str(error).split("\n")]
    if problems:
        raise UsageError("\n".join(problems))
    return Effective(config, origins, [_as_given(line, given) for line in warnings_of(config)])


def _as_given(line: str, given: Mapping[str, str]) -> str:
    """A message with the other name that was used for a setting behind its own."""
    for name, spelled in given.items():
        if spelled != name:
            line = re.sub(rf"\b{name}\b", f"{name} ({spelled})", line)
    return line


def _placed(line: str, origins: Mapping[str, str], path: str | None, given: Mapping[str, str]) -> str:
    """A complaint about a setting, behind the file and line that sets it."""
    name = line.partition(" ")[0]
    line = _as_given(line, given)
    if path is None or origins.get(name) != path:
        return line
    spellings = "|".join(
        re.escape(each) for each in (name, *(old for old, new in ALIASES.items() if new == name))
    )
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    found = re.search(rf"^[ \t]*[\"']?(?:{spellings})[\"']?[ \t]*[:=]", text, re.MULTILINE)
    return f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {line}" if found else f"{path}: {line}"


def help_text() -> str:
    """What ``--help`` prints."""
    lines = [
        f"python -m {__package__} [--config FILE] [--key value | --key=value]…",
        "",
        "Trains a small GPT, alone or under torchrun. Without data it trains on Python's own source.",
        "A flag wins over the file (TOML or YAML), the file over the default, which stands in brackets.",
        "- and _ are alike in names; --key turns a switch on, --no_key off.",
    ]
    for f in fields(Config):
        if f.metadata["section"]:
            lines += ["", f"{f.metadata['section']}:"]
        choices = f.metadata["choices"]
        note = f" ({'|'.join(choices)})" if choices else ""
        if f.metadata["range"] is not None:
            note = f" ({f.metadata['range'].words})"
        default = f" [{shown(f.default)}]" if f.default != "" else ""
        also = "".join(f"; also --{old}" for old, new in ALIASES.items() if new == f.name)
        lines.append(f"  --{f.name:<27} {f.metadata['help']}{note}{default}{also}")
    lines += [
        "",
        f"Data files: python -m {__package__}.data --help. Checkpoints: python -m {__package__}.checkpoint --help.",
    ]
    lines.append("Exit: 0 done · 1 failed · 2 usage · 75 stopped after a checkpoint · 130 interrupted")
    return "\n".join(lines)


def _flags(
    argv: Sequence[str], problems: list[str], given_as: dict[str, str]
) -> tuple[dict[str, Any], str | None]:
    """Values by key, and the config file. What cannot be read goes to `problems`, other names of keys to `given_as`."""
    known = types()
    values: dict[str, Any] = {}
    path: str | None = None
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise UsageError(f"unexpected argument {word!r}: settings are given as --key value")
        given, equals, text = word[2:].partition("=")
        name = ALIASES.get(given.replace("-", "_"), given.replace("-", "_"))
        if not equals and known.get(name.removeprefix("no_")) is bool and name not in known:
            values[name.removeprefix("no_")] = False
            continue
        if name not in known and name not in LAUNCH_KEYS and name != "config":
            raise _unknown(f"--{given}", name, "--")
        if known.get(name) is bool and not equals:
            text = words.pop(0) if words and words[0].lower() in TRUE | FALSE else "true"
        elif not equals:
            if not words:
                raise UsageError(f"--{given} wants a value")
            text = words.pop(0)
        if name == "config":
            if path is not None:
                raise UsageError(f"--config is given twice: {path} and {text}; one file holds all settings")
            path = text
        elif name not in LAUNCH_KEYS:
            given_as[name] = given.replace("-", "_")
            try:
                values[name] = _converted(f"--{given}", name, text)
            except UsageError as error:
                problems.append(str(error))
    return values, path


def _file(path: Path, problems: list[str], given_as: dict[str, str]) -> dict[str, Any]:
    """Values by key; `problems`, `given_as`: see `_flags`, whose names stand."""
    values: dict[str, Any] = {}
    for given, value in _parsed(path).items():
        name = ALIASES.get(str(given), str(given))
        if name in LAUNCH_KEYS or (name in LAUNCH_TABLES and isinstance(value, dict)):
            continue
        if name not in types():
            raise _unknown(f"{path}: unknown key {str(given)!r}", name, "")
        if name in values:
            raise UsageError(f"{path}: {str(given)!r} is another name of {name!r}, which is set too")
        given_as.setdefault(name, str(given))
        try:
            values[name] = _converted(f"{path}: {given}", name, value)
        except UsageError as error:
            problems.append(str(error))
    return values


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config {path}: not UTF-8 text") from None
    values: Any
    if path.suffix == ".toml":
        import tomllib

        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{path}: not valid TOML: {error}") from None
    elif path.suffix in {".yaml", ".yml"}:
        values = _yaml(path, text)
    elif path.suffix == ".py":
        raise UsageError(
            f"{path}: a .py preset is read by stoker (stoker run --config {path}), never executed"
        )
    else:
        raise UsageError(f"--config {path}: a config ends in .toml, .yaml or .yml")
    if not isinstance(values, dict):
        raise UsageError(f"{path}: a config is a mapping of keys to values")
    return values


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{path}: YAML needs PyYAML (pip install pyyaml), or use TOML") from None
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def _converted(shown: str, name: str, value: object) -> int | float | str | bool:
    kind = types()[name]
    text = str(value).strip()
    if kind is bool:
        if text.lower() in TRUE:
            return True
        if text.lower() in FALSE:
            return False
        raise UsageError(f"{shown} wants true or false, got {value!r}")
    if isinstance(value, bool | list | dict) or value is None:
        raise UsageError(f"{shown} wants {_wanted(kind)}, got {value!r}")
    try:
        if kind is int:
            return _of_64_bits(int(text) if not isinstance(value, float) else _whole(value))
        if kind is float:
            return _finite(float(text))
    except ValueError:
        raise UsageError(f"{shown} wants {_wanted(kind)}, got {value!r}") from None
    choices = next(f.metadata["choices"] for f in fields(Config) if f.name == name)
    if choices and text not in choices:
        raise UsageError(f"{shown} takes one of {', '.join(choices)}, got {text!r}")
    return text


def _whole(value: float) -> int:
    if value != int(value):
        raise ValueError(value)
    return int(value)


def _of_64_bits(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(value)
    return value


def _finite(value: float) -> float:
    if value - value != 0:  # nan and the infinities
        raise ValueError(value)
    return value


def _wanted(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "text"}[kind]


def _unknown(what: str, name: str, dashes: str) -> UsageError:
    near = difflib.get_close_matches(name, [*types(), *ALIASES], n=1, cutoff=0.5)
    hint = f"did you mean {dashes}{near[0]}?" if near else "see --help for every setting"
    return UsageError(f"{what}: {hint}" if "unknown" in what else f"unknown flag {what}: {hint}")
