"""Validates job files and product settings key by key, and converts values from any source.

The first source that provides a setting wins: flag > STOKER_* > PET_* > job file > project > user > default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from supervisor.job.arguments.run_arguments import STOKER_FLAGS, TORCHRUN_FLAGS, ParsedRun, nearest
from supervisor.job.config.files import line_of
from supervisor.job.config.trainer_table import ALIASES, TRAINER_KEYS
from supervisor.job.errors import JobError
from supervisor.job.setting_keys import (
    ANSWERS,
    CLASS_KEYS,
    FLAT,
    LAUNCH_SECTIONS,
    METRIC_KEYS,
    METRICS,
    OF_NO_JOB,
    PRECONDITIONS,
    SETTINGS,
    SIGNATURE,
    SIGNATURE_KEYS,
    Setting,
)
from supervisor.job.spec import ClassOverride, OwnSignature, signature_key
from supervisor.text.patterns import compile_linear

_OWN_FLAGS: Final = {flag.setting: flag for flag in STOKER_FLAGS if flag.setting}
_LAUNCHER_FLAGS: Final = {flag.setting: flag for flag in TORCHRUN_FLAGS if flag.setting}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A settings file: its name for messages, parsed values, text (for line numbers), and whether it is a preset."""

    name: str
    values: Mapping[str, Any]
    text: str = ""
    is_preset: bool = False

    def at(self, key: str) -> str:
        """Return where a key is set: the file's name, plus the line if known."""
        line = line_of(self.text, key)
        return f"{self.name}:{line}" if line else self.name

    def error(self, key: str, what: str) -> JobError:
        """Return a one-line error that points to `key`."""
        return JobError(f"{self.at(key)}: {what}")

    def unknown(self, key: str, known: Iterable[str]) -> JobError:
        """Return the error for an unknown key."""
        near = nearest(key, known)
        hint = f"did you mean {near!r}?" if near else "see configs/README.md for every key"
        return self.error(key, f"unknown key {key!r}: {hint}")

    def converted(self, key: str, setting: Setting, value: object) -> int | float | str | bool:
        """Convert a value to the type of its setting, or raise JobError."""
        try:
            return setting.held(key, value)
        except JobError as error:
            raise self.error(key, error.message) from None

    def table(self, key: str, value: object) -> Mapping[str, Any]:
        """Return a value that must be a table, or raise JobError if it is not one."""
        if not isinstance(value, dict):
            raise self.error(key, f"{key} is a table of settings, got {value!r}")
        return value

    def held(self, where: str, table: Mapping[str, Any], known: Mapping[str, Setting]) -> dict[str, Any]:
        """Convert each value in a table. Raises JobError for an invalid value or a key that is not in `known`."""
        for key in table:
            if key not in known:
                raise self.unknown(f"{where}.{key}", [f"{where}.{each}" for each in known])
        return {key: self.converted(f"{where}.{key}", known[key], value) for key, value in table.items()}

    def tables(self, key: str, value: object, known: Mapping[str, Setting]) -> list[dict[str, Any]]:
        """Convert a list of tables. Raises JobError for an invalid value or a key that is not in `known`."""
        if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
            raise self.error(key, f"{key} is a list of tables: [[{key}]] with {', '.join(known)}")
        return [self.held(key, table, known) for table in value]

    def pattern(self, what: str, regex: str) -> re.Pattern[str]:
        """Compile a regular expression from the file. Raises JobError if it is not acceptable."""
        try:
            return compile_linear(regex)
        except ValueError as error:
            raise self.error("regex", f"{what}: {regex!r} {error}") from None


@dataclass(frozen=True, slots=True)
class FileSettings:
    """One checked file: launch settings by dotted key, and other content.

    `label` says which file it is, e.g. ``project``. `spelt` maps keys to their spelling in the file, if different.
    """

    label: str = ""
    file: ConfigFile = ConfigFile("", {})
    settings: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] | None = None
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    metrics: tuple[tuple[str, str], ...] = ()
    signatures: tuple[tuple[OwnSignature, ClassOverride | None], ...] = ()
    spelt: Mapping[str, str] = field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Return the name of the file that sets a key, and the key's position in the file."""
        return f"{self.label} {self.file.at(self.spelt.get(key, key))}"


def spec_key_names() -> frozenset[str]:
    """Return the names allowed as flags alongside ``--config``: trainer keys, their aliases and flat launch keys."""
    own = {flag.key for flag in (*STOKER_FLAGS, *TORCHRUN_FLAGS)}
    return frozenset((set(TRAINER_KEYS) | set(ALIASES) | set(FLAT)) - own)


def check_file(
    file: ConfigFile | None, *, classes: frozenset[str], is_job: bool, label: str = ""
) -> FileSettings:
    """Check every key of a settings file.

    Args:
        file: the file, or None.
        label: which file it is.
        classes: names of failure classes, for ``[policy.<class>]``.
        is_job: True for a job file, which may have trainer keys, or False for product settings, which may not.

    Raises:
        JobError: an unknown key (the message gives the nearest name and the line) or a value of the wrong type.
    """
    if file is None:
        return FileSettings(label)
    checked = _Checked(file, classes, is_job)
    for key, value in file.values.items():
        checked.attempt(checked.add, key, value)
    if checked.wrong:
        raise JobError(*checked.wrong)
    return FileSettings(label, file, **checked.found)


class _Checked:
    """Collects the valid contents of one settings file, keyed by `FileSettings` field. For a single call."""

    def __init__(self, file: ConfigFile, known_classes: frozenset[str], is_job: bool) -> None:
        self.file, self.known_classes, self.is_job = file, known_classes, is_job
        self.wrong: list[str] = []
        self.found: dict[str, Any] = {"settings": {}, "trainer": {}, "classes": {}, "spelt": {}}

    def attempt(self, take: Callable[..., None], *what: object) -> None:
        """Process a key or record its error, so all of a file's errors can be reported together."""
        try:
            take(*what)
        except JobError as error:
            self.wrong.append(error.message)

    def add(self, key: str, value: object) -> None:
        """Add one top-level key of the file."""
        file, found = self.file, self.found
        name = ALIASES.get(key, key)
        if key == METRICS:
            found["metrics"] = _metric_rules(file, value)
        elif key == SIGNATURE:
            found["signatures"] = own_signatures(file, value, self.known_classes)
        elif key == "env":
            pairs = file.table(key, value).items()
            found["env"] = {name: _env_value(file, name, inner) for name, inner in pairs}
        elif key in LAUNCH_SECTIONS or (key in OF_NO_JOB and not self.is_job):
            for inner_name, inner in file.table(key, value).items():
                self.attempt(self._in_section, key, inner_name, inner)
        elif self.is_job and key in FLAT:
            found["settings"][FLAT[key]] = file.converted(key, SETTINGS[FLAT[key]], value)
            found["spelt"][FLAT[key]] = key
        elif self.is_job and name in TRAINER_KEYS:
            if name in found["trainer"]:
                raise file.error(key, f"{key!r} is another name of {name!r}, which is set too")
            found["trainer"][name] = file.converted(key, TRAINER_KEYS[name], value)
            found["spelt"][name] = key
        elif key in OF_NO_JOB:
            where = "stoker.toml or ~/.config/stoker/config.toml"
            raise file.error(key, f"[{key}] belongs in {where}: it is of {OF_NO_JOB[key]}, not of one job")
        else:
            of_job = (*TRAINER_KEYS, *FLAT) if self.is_job else (*OF_NO_JOB,)
            raise file.unknown(key, [*LAUNCH_SECTIONS, METRICS, SIGNATURE, *of_job, *ALIASES])

    def _in_section(self, section: str, name: str, value: object) -> None:
        dotted, file = f"{section}.{name}", self.file
        classes = self.known_classes if section == "policy" else ()
        if dotted == "run.args":
            if not isinstance(value, list) or any(isinstance(v, list | dict) or v is None for v in value):
                raise file.error("args", f"run.args is a list of arguments, got {value!r}")
            self.found["args"] = tuple(map(str, value))
        elif dotted in SETTINGS:
            self.found["settings"][dotted] = file.converted(dotted, SETTINGS[dotted], value)
        elif name in classes:
            self.found["classes"][name] = _class_table(file, dotted, file.table(dotted, value))
        else:
            own = [key for key in SETTINGS if key.startswith(f"{section}.")]
            own += ["run.args"] if section == "run" else []
            raise file.unknown(dotted, own + [f"policy.{each}" for each in classes])


def _metric_rules(file: ConfigFile, value: object) -> tuple[tuple[str, str], ...]:
    """Return the ``[[metrics]]`` tables as (name, regex) pairs. A regex must contain a group for the number."""
    rules = []
    for table in file.tables(METRICS, value, METRIC_KEYS):
        if len(table) < len(METRIC_KEYS):
            raise file.error(METRICS, "each [[metrics]] has a name and a regex")
        name, regex = table["name"], table["regex"]
        if file.pattern(f"metric {name!r}", regex).groups < 1:
            raise file.error("regex", f"metric {name!r}: {regex!r} has no group: put the number in (...)")
        rules.append((name, regex))
    return tuple(rules)


# The package itself has 185 signatures. The longest has 1,366 characters. Compiling all takes about 2 s.
MOST_SIGNATURES = 200
LONGEST_REGEX = 2000
_SIGNATURE_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# In these classes nothing has failed, so no line can reveal them.
_NO_FAILURE = frozenset(("healthy", "unknown"))
# The class of a failure that has only the user's own name.
_NAMED_CLASS = "code_error"


def own_signatures(
    file: ConfigFile, value: object, classes: frozenset[str]
) -> tuple[tuple[OwnSignature, ClassOverride | None], ...]:
    """Return the ``[[signature]]`` tables, each with the policy override it calls for, if any.

    Raises:
        JobError: a key is unknown or missing, or has an invalid value.
    """
    of_class = replace(SIGNATURE_KEYS["class"], choices=tuple(sorted(classes - _NO_FAILURE)))
    tables = file.tables(SIGNATURE, value, {**SIGNATURE_KEYS, "class": of_class})
    if len(tables) > MOST_SIGNATURES:
        raise file.error(SIGNATURE, f"{len(tables)} signatures, more than {MOST_SIGNATURES}")
    found: dict[str, tuple[OwnSignature, ClassOverride | None]] = {}
    for table in tables:
        signature = _own_signature(file, table)
        if signature.id in found:
            raise file.error("id", f"signature {signature.id!r} is there twice")
        override = _own_override(file, signature.id, table.get("action"), table.get("recurs"))
        found[signature.id] = signature, override
    return tuple(found.values())


def nearest_signatures(
    by_file: Iterable[Iterable[tuple[OwnSignature, ClassOverride | None]]],
) -> dict[OwnSignature, ClassOverride | None]:
    """Merge signatures and policy overrides from several files, nearest first. For a duplicate id, the nearest file wins."""
    found: dict[str, tuple[OwnSignature, ClassOverride | None]] = {}
    for pairs in by_file:
        for signature, override in pairs:
            found.setdefault(signature.id, (signature, override))
    return dict(found.values())


def _own_signature(file: ConfigFile, table: Mapping[str, str]) -> OwnSignature:
    name, regex = table.get("id", ""), table.get("regex", "")
    failure, title = table.get("class", ""), table.get("name", "").strip()
    what = f"signature {name!r}"
    if not _SIGNATURE_ID.fullmatch(name):
        raise file.error("id", f"{what}: its id is lower-case words joined by hyphens")
    if len(regex) > LONGEST_REGEX:
        raise file.error("regex", f"{what}: its regex is longer than {LONGEST_REGEX} characters")
    if file.pattern(what, regex).search("") is not None:
        raise file.error("regex", f"{what}: {regex!r} matches any line")
    if not failure and not title:
        raise file.error("id", f"{what} needs a class or a name of your own")
    return OwnSignature(
        name, regex, failure or _NAMED_CLASS, title[:100], table.get("role", "cause"), table.get("start", "")
    )


def _own_override(
    file: ConfigFile, name: str, action: str | None, recurs: str | None
) -> ClassOverride | None:
    """Return the policy override: the given action, or else one restart if the failure does not recur and none if it does."""
    if action == "restart" and recurs == "yes":
        what = f"signature {name!r}: it recurs, so that a restart would meet it again: hold or stop"
        raise file.error("action", what)
    if action is None and recurs is None:
        return None
    action = action or ("hold" if recurs == "yes" else "restart")
    most = 1 if recurs == "no" else None
    if action not in ANSWERS:
        return ClassOverride(signature_key(name), "restart", most, change=action)
    return ClassOverride(signature_key(name), action, most, change="none" if action == "restart" else None)


@dataclass(slots=True)
class Resolver:
    """Looks up settings in all layers and records every layer that sets one, along with the location.

    In `origins`, a setting's last row is in effect. It overrides the earlier rows, which start at the lowest layer.
    """

    parsed: ParsedRun
    env: Mapping[str, str]
    layers: tuple[FileSettings, ...]  # job file, project, user
    origins: list[tuple[str, str, str]] = field(default_factory=list)

    def get(self, key: str) -> Any:
        """Return the converted value of a dotted setting, or its default if no source sets it."""
        setting = SETTINGS[key]
        value = setting.default
        if value is not None:
            self.note(key, value, "default")
        named = [(given, origin) for given, origin in self._sources(key) if given is not None]
        for given, origin in reversed(named):
            value = given
            self.note(key, given, origin)
        if self.origins and self.origins[-1][0] == key and (origin := self.origins[-1][2]) != "default":
            value = setting.held(_shown(key, origin), value)
            if key.endswith("knob") and value == "":
                raise JobError(f"{_shown(key, origin)} wants the name of a flag, got none")
            self.origins[-1] = (key, str(value), origin)
        return value

    def note(self, key: str, value: object, origin: str) -> None:
        """Record a value that overrides earlier values of the same setting."""
        self.origins.append((key, str(value), origin))

    def put(self, key: str, value: Any, switch: str) -> Any:
        """Return `value` and record that a command-line switch set it."""
        self.note(key, value, f"flag --{switch.replace('_', '-')}")
        return value

    def is_given(self, key: str) -> bool:
        """Check whether a setting that was looked up came from any source other than its default."""
        return any(name == key and origin != "default" for name, _, origin in self.origins)

    def _sources(self, key: str) -> Iterator[tuple[Any, str]]:
        """Yield the value (None if unset) and origin for each source, in the order given in the module docstring."""
        own, launcher, parsed = _OWN_FLAGS.get(key), _LAUNCHER_FLAGS.get(key), self.parsed
        given = parsed.launcher(launcher.key) if launcher is not None else None
        by_variable = launcher is not None and launcher.key in parsed.from_env
        if own is not None:
            yield parsed.flag(own.key), f"flag {own.name}"
        if launcher is not None and not by_variable:
            yield given, f"flag {launcher.name}"
        for flat, value in reversed(parsed.spec_keys):
            if FLAT.get(flat) == key:
                yield value, f"flag --{flat}"
        if (flag := own or launcher) is not None:
            name = f"STOKER_{flag.key.upper()}"
            yield self.env.get(name), f"env {name}"
        # Otherwise torchrun's variables do not count, as for a command.
        if launcher is not None and given is not None:
            name = f"PET_{launcher.key.upper()}"
            yield given if by_variable else self.env.get(name), f"env {name}"
        if key == "run.nproc_per_node":
            yield self.env.get("NPROC_PER_NODE"), "env NPROC_PER_NODE"
        if key == "run.log_level":  # ignore values that only other programs use
            level = self.env.get("LOG_LEVEL", "").lower()
            yield level if level in SETTINGS[key].choices else None, "env LOG_LEVEL"
        for layer in self.layers:
            if key in layer.settings:
                yield layer.settings[key], layer.origin(key)


def _shown(key: str, origin: str) -> str:
    kind, _, name = origin.partition(" ")
    return name if kind in {"flag", "env"} else f"{name}: {key}"


def _env_value(file: ConfigFile, name: str, value: object) -> str:
    if not name.isidentifier():
        raise file.error(name, f"env: {name!r} is no name of a variable")
    if isinstance(value, list | dict) or value is None:
        raise file.error(name, f"env.{name} wants text, got {value!r}")
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _class_table(file: ConfigFile, where: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    first = table.get("show_first")
    checked = file.held(where, {k: v for k, v in table.items() if k != "show_first"}, CLASS_KEYS)
    if first is None:
        return checked
    if not isinstance(first, list) or not set(first) <= set(PRECONDITIONS):
        what = f"{where}.show_first is a list of {', '.join(PRECONDITIONS)}, got {first!r}"
        raise file.error("show_first", what)
    return {**checked, "show_first": tuple(first)}
