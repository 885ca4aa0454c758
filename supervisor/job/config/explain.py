"""Explains a job's setting or variable: its meaning, value and origin, and the values it overrides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from supervisor.job.arguments.run_arguments import STOKER_FLAGS, TORCHRUN_FLAGS, Flag, nearest
from supervisor.job.config.trainer_table import ALIASES, TRAINER_KEYS
from supervisor.job.errors import JobError
from supervisor.job.launch.env import (
    DEBUG_DISTRIBUTED,
    DETERMINISTIC,
    WIRE_NAMES,
    WIRE_REASON,
    environment_layers,
)
from supervisor.job.setting_keys import CLASS_KEYS, FLAT, SETTINGS, Setting, shown, unit_of
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.text.redact import redact, redact_text

DEFAULT: Final = "default"
NOT_SET: Final = "not set"
_SHELL: Final = "env (the shell's, passed on)"
_ENV: Final = "env."


Source: TypeAlias = tuple[str | None, str]
"""A value and its origin. A value of None means that the variable is removed."""


def row(key: str, sources: Sequence[Source]) -> dict[str, Any]:
    """Return a setting's value, its origin, and the values it overrides, latest first. The last of `sources` is in effect."""
    *beaten, (value, origin) = sources or [(None, NOT_SET)]
    overrode = [{"value": text, "origin": redact_text(where)} for text, where in reversed(beaten)]
    return {"key": key, "value": value, "origin": redact_text(origin), "overrode": overrode}


def explain(
    name: str, spec: JobSpec, env: Mapping[str, str], classes: Collection[str] = ()
) -> dict[str, Any]:
    """Explain a setting (by any of its names) or a job variable: its `row`, its meaning, and the values it takes.

    Args:
        name: ``grace_s`` with or without its table, ``--grace``, ``STOKER_GRACE``, a trainer key or its alias, ``NCCL_DEBUG``,
            ``env.NCCL_DEBUG``.
        spec: the job.
        env: the environment of the launch.
        classes: the names of failure classes, for ``policy.<class>.<key>``.

    Raises:
        JobError: the name is unknown. The message suggests the nearest name.
    """
    key = _key_of(name)
    if (setting := setting_of(key, classes)) is not None:
        sources: list[Source] = [(redact(key, value), origin) for value, origin in spec.sources(key)]
        of_trainer, default = key in TRAINER_KEYS, setting.default
        usual = shown(default) if default is not None else ""
        if (of_trainer or not sources) and default is not None:
            sources.insert(0, (usual, DEFAULT))
        if of_trainer and spec.entry_kind is not EntryKind.TRAINER:
            sources = []
        facts = {"meaning": setting.meaning, "takes": setting.takes, "unit": unit_of(key), "default": usual}
        return {**row(key, sources), **facts, "other_names": other_names(key)}
    variable = name.removeprefix(_ENV)
    of_launch = _of_variable(variable, spec, env)
    known = {*_SET_BY, *WIRE_NAMES, *(change.name for change in environment_layers(spec, base=env, wire={}))}
    is_plain = variable.isidentifier() and variable.isupper() and not nearest(variable, known)
    if of_launch or variable in known or is_plain:
        facts = {
            "meaning": _SET_BY.get(variable, "a variable of the job"),
            "takes": "",
            "unit": "",
            "default": "",
        }
        return {**row(variable, of_launch), **facts, "other_names": ()}
    names = [*SETTINGS, *TRAINER_KEYS, *(name for name, _ in _names()), *known]
    near_key = nearest(key, names) or nearest(key.rpartition(".")[2], names)
    hint = f"did you mean {near_key!r}?" if near_key else "`stoker config explain` lists all that are set"
    raise JobError(f"no setting {name!r}: {hint}")


def setting_of(key: str, classes: Collection[str] = ()) -> Setting | None:
    """Return the setting for a key spelled as in the tables, or None if there is none."""
    section, _, last = key.rpartition(".")
    of_class = section.partition(".")[0] == "policy" and section.partition(".")[2] in classes
    return SETTINGS.get(key) or TRAINER_KEYS.get(key) or (CLASS_KEYS.get(last) if of_class else None)


def other_names(key: str) -> tuple[str, ...]:
    """Return a setting's other names: on the command line, as variables, and in a trainer's job file."""
    return tuple(name for name, meant in _names() if meant == key)


def variables(spec: JobSpec, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the `row` of each variable that a launch of the job changes, in the order of `environment`."""
    names = {change.name: None for change in reversed(environment_layers(spec, base=env, wire={}))}
    return [row(name, _of_variable(name, spec, env)) for name in reversed(names)]


def _of_variable(name: str, spec: JobSpec, env: Mapping[str, str]) -> list[Source]:
    own = [(change.value, change.reason) for change in environment_layers(spec, base=env, wire={})
           if change.name == name]  # fmt: skip
    found = [(env[name], _SHELL), *own] if name in env else own
    sources: list[Source] = [(value and redact(name, value), origin) for value, origin in found]
    return [*sources, ("(of each attempt its own)", WIRE_REASON)] if name in WIRE_NAMES else sources


def _key_of(name: str) -> str:
    """Return the key that a name refers to, or the name itself if it is not one of ours."""
    word = name.replace("-", "_").lstrip("_") if name.startswith("--") else name
    if word in SETTINGS or word in TRAINER_KEYS:
        return word
    for spelt, key in _names():
        if name == spelt or word == spelt.removeprefix("--").replace("-", "_"):
            return key
    of_that_name = [key for key in SETTINGS if key.partition(".")[2] == word]
    return of_that_name[0] if len(of_that_name) == 1 else name


def _names() -> Iterator[tuple[str, str]]:
    """Yield (alternative name, key) pairs for all settings."""
    for flag in STOKER_FLAGS:
        yield from _of_flag(flag, ("STOKER_",))
    for flag in TORCHRUN_FLAGS:
        yield from _of_flag(flag, ("STOKER_", "PET_"))
    yield from (("NPROC_PER_NODE", "run.nproc_per_node"), ("LOG_LEVEL", "run.log_level"))
    yield from FLAT.items()
    yield from ALIASES.items()
    yield from ((name, key) for key in TRAINER_KEYS if (name := f"STOKER_{key.upper()}") not in WIRE_NAMES)


def _of_flag(flag: Flag, prefixes: Iterable[str]) -> Iterable[tuple[str, str]]:
    names = (flag.name, *(f"{prefix}{flag.key.upper()}" for prefix in prefixes))
    return [(name, flag.setting) for name in names] if flag.setting else ()


_SET_BY: Final[Mapping[str, str]] = {
    **{name: f"--debug-distributed sets it to {value}" for name, value in DEBUG_DISTRIBUTED.items()},
    **{name: f"--deterministic sets it to {value}" for name, value in DETERMINISTIC.items()},
    "PYTHONUNBUFFERED": "set to 1, else a rank's lines reach its file only when a buffer is full",
    "OMP_NUM_THREADS": "set to 1 for several ranks, as torchrun would",
    "CUDA_VISIBLE_DEVICES": "which GPUs the job sees",
}
