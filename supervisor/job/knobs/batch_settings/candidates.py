"""Every setting that may hold a batch or an accumulation, with its value and where it was read.

One setting can stand in several places: on the command line, in a config, as a default in the source. They are one candidate
where they go by one name; the place that wins is the one that the script would take.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.config.edit import NEW, Scalar
from supervisor.job.knobs.batch_settings.names import Role, is_other_batch, may_accumulate, role_of
from supervisor.job.knobs.conventions import Convention
from supervisor.job.knobs.places import ENV, Places, bare
from supervisor.job.knobs.source.config_keys import absent_keys
from supervisor.job.knobs.source.declarations import constant
from supervisor.job.knobs.source.read_source import ScriptFlag, called

DEEPSPEED: Final = "deepspeed"
ACCELERATE: Final = "accelerate"
_DEEPSPEED_ROLES: Final = {
    "train_micro_batch_size_per_gpu": Role.MICRO,
    "train_batch_size": Role.TOTAL,
    "gradient_accumulation_steps": Role.ACCUMULATION,
}


class Given(IntEnum):
    """How a value came about; the higher one wins."""

    CONVENTION = 0
    DECLARED = 1
    ENVIRONMENT = 2
    CONFIG = 3
    COMMAND_LINE = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting: the name to set it under, its role, its value, how that came about and where it was read.

    `follows`: the keys that its value is interpolated from (OmegaConf's ``${train.batch_size}``). `by_use`: its name does not say what it is.
    """

    name: str
    role: Role
    value: Scalar
    given: Given
    where: str
    dest: str
    typed: str | None = None
    is_switch: bool = False
    framework: str = ""
    follows: frozenset[str] = frozenset()
    by_use: bool = False

    @property
    def number(self) -> int | None:
        """The value as a positive whole number; None for ``auto``, -1 and all else."""
        return as_number(self.value)

    @property
    def explicit(self) -> bool:
        """Whether a person wrote it down for this run."""
        return self.given >= Given.ENVIRONMENT


def as_number(value: Scalar) -> int | None:
    """A positive whole number, also of the form ``1_000`` or ``1e6``; None for all else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        text = value.strip().strip("[]").replace("_", "")
        if not text or len(text) > 18:
            return None
        try:
            value = float(text) if "e" in text.lower() else int(text)
        except ValueError:
            return None
    if isinstance(value, float):
        if not (value.is_integer() and 0 < value < 1e15):
            return None
        value = int(value)
    return value if 0 < value < 10**15 else None


def collect(args: Sequence[str], where: Places, convention: Convention | None = None) -> list[Candidate]:
    """Every candidate, each setting once, in the place that wins."""
    found: dict[str, Candidate] = {}
    for candidate in (
        *_from_arguments(args, where),
        *_from_configs(where),
        *_from_environment(where),
        *_declared(args, where),
        *_siblings(args, where),
        *_absent(where),
    ):
        named = _renamed(candidate, convention)
        if named is None:
            continue
        known = found.get(named.dest)
        if known is None or named.given > known.given:
            found[named.dest] = named
    roles = {c.role for c in found.values() if not c.by_use}
    if roles & _BATCHES:
        roles |= _BATCHES  # what else goes to a loader is another one's
    return [_interpolated(c, found) for c in found.values() if not (c.by_use and c.role in roles)]


def _interpolated(candidate: Candidate, found: Mapping[str, Candidate]) -> Candidate:
    """The candidate with the keys that its value follows from; a total that is another key's number has that number."""
    if not isinstance(candidate.value, str) or "${" not in candidate.value:
        return candidate
    candidate = replace(candidate, follows=frozenset(re.findall(r"\$\{([\w.]+)", candidate.value)))
    same = re.fullmatch(r"\$\{([\w.]+)\}", str(candidate.value))
    origin = found.get(same[1]) if same is not None and candidate.role is Role.TOTAL else None
    return replace(candidate, value=origin.value) if origin is not None else candidate


def _renamed(candidate: Candidate, convention: Convention | None) -> Candidate | None:
    """The candidate with the role that the framework gives its name, and without a switch in the place of a number."""
    if candidate.is_switch or candidate.typed in {"bool", "float"}:
        return None
    plain = plain_name(candidate.name).rpartition(".")[2]
    if convention is not None and plain in convention.micro and not candidate.framework:
        return replace(candidate, role=Role.BATCH)
    return None if plain in FRAMEWORK_NAMES else candidate


def plain_name(name: str) -> str:
    """A setting's name without its place, dashes as underscores: what a dotted key and a flag have in common."""
    return bare(name).lstrip("-+").replace("-", "_")


def plain_last(name: str) -> str:
    """The last key of a setting's name, dashes as underscores."""
    return plain_name(name).rpartition(".")[2]


def _role(name: str, convention_names: frozenset[str] = frozenset()) -> Role | None:
    role = role_of(name)
    if role is None and plain_name(name).rpartition(".")[2] in convention_names:
        return Role.BATCH
    return role


_BATCHES: Final = frozenset({Role.MICRO, Role.BATCH, Role.NODE})
# Names that only a framework's row makes a batch: they are collected, and dropped where the row is not there.
FRAMEWORK_NAMES: Final = frozenset({"max_tokens", "max_sentences", "batch_bins"})


def _from_arguments(args: Sequence[str], where: Places) -> Iterator[Candidate]:
    for setting in settings_of(args[where.args_at :]):
        role = _role(setting.name, FRAMEWORK_NAMES)
        flag = where.source.flag(setting.name) if setting.name.startswith("-") else None
        if role is None and flag is not None:  # a short name: its long one says what it is
            role = next((r for n in flag.names if (r := _role(n))), None)
        by_use = role is None
        role = role or _passed_as(where, flag)
        if role is None:
            continue
        dest = _dest(flag) if flag is not None else plain_name(setting.name)
        switch = setting.value is None
        yield Candidate(
            setting.name,
            role,
            setting.value,
            Given.COMMAND_LINE,
            "command line",
            dest,
            is_switch=switch or (flag is not None and flag.is_switch),
            by_use=by_use,
        )


def _passed_as(where: Places, flag: ScriptFlag | None) -> Role | None:
    """What a flag without a telling name is by its use.

    The accumulation: a number that is passed on under such a name and no other (``Accelerator(gradient_accumulation_steps=args.ac)``), that
    the loss is divided by where the optimizer steps, or of the even pieces of a batch. The batch: what a DataLoader is given.
    """
    if flag is None or flag.is_switch or not (flag.type == "int" or as_number(flag.default)):
        return None
    if "backward" in where.source.used and any(
        _role(f"--{f.dest}") is Role.BATCH and where.source.cuts_evenly(f.dest, flag.dest)
        for f in where.source.flags
    ):
        return Role.ACCUMULATION
    roles = {role_of(f"--{p.keyword}") for p in where.source.passed if p.leaf == flag.dest}
    if roles == {Role.ACCUMULATION} or (may_accumulate(flag.dest) and where.source.accumulates(flag.dest)):
        return Role.ACCUMULATION
    to_data = where.source.passes_undivided(flag.dest) and not is_other_batch(flag.dest)
    return Role.BATCH if to_data and flag.type == "int" else None


def _dest(flag: ScriptFlag) -> str:
    return plain_name(max(flag.names, key=len))


def _from_configs(where: Places) -> Iterator[Candidate]:
    for file, values in where.configs.items():
        kind = where.roles.get(file, "")
        for key, value in values.items():
            name = f"{file}#{key}"
            role: Role | None
            if kind == DEEPSPEED:
                role = _DEEPSPEED_ROLES.get(key)
            elif kind == ACCELERATE:
                role = Role.ACCUMULATION if key == "deepspeed_config.gradient_accumulation_steps" else None
            else:
                role = _role(name, FRAMEWORK_NAMES)
            if role is None or value is None or isinstance(value, bool):
                continue
            dest = f"{kind}:{key}" if kind else key.lstrip(NEW).replace("-", "_")
            given, place = (
                (Given.DECLARED, "default of the config") if key.startswith(NEW) else (Given.CONFIG, file)
            )
            yield Candidate(name, role, value, given, place, dest, framework=kind)
    for name, (value, read_in) in where.settled.items():
        role = _role(name, FRAMEWORK_NAMES)
        if role is not None:
            yield Candidate(name, role, value, Given.CONFIG, read_in, plain_name(name))


def _absent(where: Places) -> Iterator[Candidate]:
    """The accumulation that a config may hold and does not: ``cfg.get("accumulation_steps", 1)``."""
    for prefix, keys in where.open_configs():
        for key, default in absent_keys(where.source, keys):
            name = f"{prefix}{key}"
            if role_of(name) is Role.ACCUMULATION and as_number(default):
                yield Candidate(
                    name, Role.ACCUMULATION, default, Given.DECLARED, "default in the source", plain_name(key)
                )


def _from_environment(where: Places) -> Iterator[Candidate]:
    for variable, default in where.source.variables:
        role = role_of(f"{ENV}{variable}")
        if role is not None:
            value = where.env.get(variable, default)
            given = Given.ENVIRONMENT if variable in where.env else Given.DECLARED
            yield Candidate(
                f"{ENV}{variable}", role, value, given, f"variable {variable}", f"{ENV}{variable}"
            )


def _declaring_files(args: Sequence[str], where: Places) -> set[str]:
    """The files that declare what the command line uses, else those nearest to the script.

    If they declare no batch, those are of them whose functions the script calls for that (``Trainer.add_args(parser)``), or the nearest
    that does where a part of the arguments is left to another parser.
    """
    flags = where.source.flags
    used = {s.name.replace("_", "-") for s in settings_of(args[where.args_at :])}
    files = {f.file for f in flags if any(n.replace("_", "-") in used for n in f.names)}
    files = files or set(_nearest({f.file for f in flags}, where))
    with_batch = {f.file for f in flags if any(_role(n) in _BATCHES for n in f.names)}
    if not files & with_batch:
        files |= {f.file for f in flags if f.file in with_batch and _is_declared_by_call(f, where)}
    if "parse_known_args" in where.source.used and not files & with_batch:
        one = _nearest(with_batch, where)
        files |= set(one) if len(one) == 1 else set()
    return files


def _nearest(files: set[str], where: Places) -> list[str]:
    """Of some files those with the fewest imports between them and the script."""
    depths = {file.path: file.depth for file in where.source.files}
    least = min((depths.get(file, 0) for file in files), default=0)
    return [file for file in files if depths.get(file, 0) == least]


def _is_declared_by_call(flag: ScriptFlag, where: Places) -> bool:
    """Whether a flag is declared in a function that the script itself calls."""
    calls = {called(n) for file in where.source.files if file.depth == 0 for n in file.calls}
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name in calls
        and node.lineno <= flag.line <= (node.end_lineno or 0)
        for file in where.source.files
        if file.path == flag.file
        for node in file.nodes
    )


def _declared(args: Sequence[str], where: Places) -> Iterator[Candidate]:
    """Flags that the source declares."""
    flags = where.source.flags
    files = _declaring_files(args, where)
    inherited = _inherited_by(where, {f.owner for f in flags if f.file in files})
    for flag in flags:
        if flag.file not in files and flag.owner not in inherited:
            continue
        name = max(flag.names, key=len)
        role = next(
            (r for n in (name, *flag.names, f"--{flag.dest}") if (r := _role(n, FRAMEWORK_NAMES))), None
        )
        by_use = role is None
        role = role or _passed_as(where, flag)
        if role is not None:
            yield Candidate(
                name,
                role,
                flag.default,
                Given.DECLARED,
                f"default in {flag.where}",
                _dest(flag),
                flag.type,
                flag.is_switch,
                by_use=by_use,
            )


def _siblings(args: Sequence[str], where: Places) -> Iterator[Candidate]:
    """The fields beside a batch that is set by a dotted name (``train.batch_size=4``), where a class of the source declares both."""
    classes = [
        (
            file.path,
            {
                f.target.id: f
                for f in node.body
                if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
            },
        )
        for file in where.source.files
        for node in file.nodes
        if isinstance(node, ast.ClassDef)
    ]
    for name in [s.name for s in settings_of(args[where.args_at :]) if "." in s.name]:
        above, _, last = name.rpartition(".")
        for path, fields in classes if _role(name) in {Role.MICRO, Role.BATCH} else ():
            for field, node in fields.items() if last.replace("-", "_") in fields else ():
                role = role_of(f"{above}.{field}")
                if role in {Role.ACCUMULATION, Role.TOTAL}:
                    full = f"{above}.{field}"
                    value = constant(node.value)
                    yield Candidate(
                        full,
                        role,
                        value,
                        Given.DECLARED,
                        f"default in {path}:{node.lineno}",
                        plain_name(full),
                    )


def _inherited_by(where: Places, classes: set[str]) -> set[str]:
    """The classes that these are derived from, wherever they stand: their fields are settings too."""
    bases = where.source.bases()
    found: set[str] = set()
    open_ = classes - {""}
    while open_:
        open_ = {base for name in open_ for base in bases.get(name, ())} - found - {""}
        found |= open_
    return found


def choose(candidates: Iterable[Candidate]) -> tuple[Candidate | None, list[Candidate]]:
    """The candidate that is meant, and those that are left beside it where names and values do not decide.

    What a person wrote comes before what is declared; a name that says ``train`` before one that does not.
    """
    left = [c for c in candidates if c.number is not None]
    for prefer in (
        lambda c: c.explicit,
        lambda c: "train" in c.dest.split(":")[-1],
        lambda c: not c.framework,
    ):
        kept = [c for c in left if prefer(c)]
        left = kept or left
    if not left:
        return None, []
    return left[0], left[1:]
