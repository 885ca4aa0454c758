"""Resolves the parsed command line, files and environment into a single frozen JobSpec."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from supervisor.job.arguments.run_arguments import ParsedRun, check_nproc
from supervisor.job.batch import BatchUnit
from supervisor.job.batch import resolve as resolve_batch
from supervisor.job.config.script_settings import trial_notes, with_knobs
from supervisor.job.config.setting_values import (
    ConfigFile,
    FileSettings,
    Resolver,
    check_file,
    nearest_signatures,
)
from supervisor.job.config.trainer_table import ALIASES, TRAINER_KEYS
from supervisor.job.errors import JobError
from supervisor.job.knobs.conventions import find_loader, longer_than_usual
from supervisor.job.launch.env import VISIBLE, WIRE_NAMES, refuse_unreached
from supervisor.job.setting_keys import FLAT, OF_NO_JOB, SETTINGS
from supervisor.job.spec import (
    ClassOverride,
    EntryKind,
    FitSettings,
    HangSettings,
    JobSpec,
    Knobs,
    KnobScope,
    RetrySettings,
    Timing,
    TrialKnob,
    TrialSettings,
)

# The bundled trainer's settings, as far as batch and restarts need them.
_TRAINER_DEFAULTS: Final[dict[str, Any]] = {key: setting.default for key, setting in TRAINER_KEYS.items()}
TRAINER_KNOBS: Final = Knobs(
    batch="--device_batch_size",
    batch_scope=KnobScope.PER_RANK,
    global_batch="--total_batch_size",
    resume="--resume_from",
    resume_value="auto",
    declared=True,
)


# `config_path` holds the file. A folder shared by several nodes must be new each time.
_OF_ONE_START: Final = frozenset(("config", "run_dir", "dry_run", "show_config", "check_only"))


@dataclass(frozen=True, slots=True)
class JobInputs:
    """The inputs for resolving a job. The caller has already opened the files and counted the devices.

    `read` opens a file under `cwd` that contains a declared key. `failure_classes` lists the names allowed in
    ``[policy.<class>]``.
    """

    parsed: ParsedRun
    env: Mapping[str, str]
    cwd: str
    job_file: ConfigFile | None = None
    project: ConfigFile | None = None
    user: ConfigFile | None = None
    read: Callable[[str], str | None] | None = None
    gpus: int = 0
    cpus: int = 1
    failure_classes: frozenset[str] = frozenset()


def resolve_job(inputs: JobInputs) -> JobSpec:
    """Resolve a job.

    Raises:
        JobError: nothing to run, an unknown key, a value of the wrong type, or a batch that does not divide evenly.
    """
    look = _look(inputs)
    kind, entry, args = _entry(look)
    trial = _trial(look)
    alone = "--trial" if trial is not None else "--single-gpu" if inputs.parsed.switch("single_gpu") else ""
    run = _table(look, JobSpec, "run")
    nproc = _nproc("1" if alone else run["nproc_per_node"], inputs)
    nodes = _nodes(run["nnodes"], shared=inputs.parsed.flag("run_dir") is not None)
    if nodes is not None and run["node_rank"] >= nodes:
        raise JobError(f"--node-rank {run['node_rank']} is not below --nnodes {run['nnodes']}")
    flags, env = _launcher_flags(inputs.parsed), _env(look)
    if alone:
        run, flags, env = _on_first_gpu(run, flags, env, inputs.gpus, look, alone)
        nodes = 1
    retry, gib = _retry(look), look.get("run.expected_memory_gib")
    fit = FitSettings(look.get("batch.fit_steps"), look.get("batch.fit_timeout_s"))
    spec = JobSpec(
        entry_kind=kind,
        entry=entry,
        entry_args=args,
        torchrun_flags=flags,
        env=env,
        cwd=inputs.cwd,
        retry=retry,
        timing=Timing(**_table(look, Timing, "policy")),
        hang=HangSettings(**_table(look, HangSettings, "hang"), act_given=look.is_given("hang.act_s")),
        instrument=_instrument(look),
        fit=fit if inputs.parsed.switch("fit_batch") else None,
        trial=trial,
        expected_memory_bytes=int(gib * 2**30) if gib is not None else None,
        config_path=inputs.job_file.name if inputs.job_file else None,
        metric_rules=tuple(rule for file in look.layers for rule in file.metrics),
        signatures=tuple(nearest_signatures(file.signatures for file in look.layers)),
        notes=inputs.parsed.notes,
        **{"name": _default_name(kind, entry, inputs.job_file), **run, "nproc_per_node": nproc},
    )
    world = nproc * nodes if nodes is not None else None
    if kind is EntryKind.TRAINER:
        spec = _with_trainer(spec, look, world)
    else:
        gpus = min(inputs.gpus, 1) if alone else inputs.gpus
        spec = with_knobs(spec, look, world, read=inputs.read, gpus=gpus, alone=alone)
    spec = refuse_unreached(spec, {**inputs.env, **dict(spec.env)})
    return replace(spec, origins=tuple(look.origins), given=tuple(_given(look)))


def _table(look: Resolver, kind: type[Any], table: str) -> dict[str, Any]:
    """Look up the fields of a record class that are settings in `table`, leaving out those without a value."""
    keys = {field.name: f"{table}.{field.name}" for field in fields(kind)}
    held = {name: look.get(key) for name, key in keys.items() if key in SETTINGS}
    return {name: value for name, value in held.items() if value is not None}


def resolve_retry(inputs: JobInputs) -> RetrySettings:
    """Resolve only the restart limits, exactly as `resolve_job` would.

    Raises:
        JobError: a key is unknown or a value has the wrong type.
    """
    return _retry(_look(inputs))


def _given(look: Resolver) -> Iterator[str]:
    """Yield the command-line arguments not recorded as settings, except switches that are off and flags for this launch only."""
    noted = {origin for _, _, origin in look.origins}
    for key, value in dict(look.parsed.stoker).items():
        name = f"--{key.replace('_', '-')}"
        if f"flag {name}" not in noted and key not in _OF_ONE_START and value != "false":
            yield from (name,) if value == "true" else (name, value)


def screen_settings(inputs: JobInputs) -> tuple[tuple[str, str, str], ...]:
    """Return the settings that belong to no job (for the TUI and for all runs), as rows like `JobSpec.origins`.

    Raises:
        JobError: a value is not allowed.
    """
    look = _look(inputs)
    for key in SETTINGS:
        if key.partition(".")[0] in OF_NO_JOB:
            look.get(key)
    return tuple(look.origins)


def _look(inputs: JobInputs) -> Resolver:
    named, classes = inputs.job_file, inputs.failure_classes
    label = "preset" if named is not None and named.is_preset else "job file"
    layers = (
        check_file(named, classes=classes, is_job=True, label=label),
        check_file(inputs.project, classes=classes, is_job=False, label="project"),
        check_file(inputs.user, classes=classes, is_job=False, label="user"),
    )
    return Resolver(inputs.parsed, inputs.env, layers)


def _entry(look: Resolver) -> tuple[EntryKind, str, tuple[str, ...]]:
    """Determine what to run and its arguments: from the command line, else the job file, else the bundled trainer."""
    parsed, job = look.parsed, look.layers[0]
    script, module = job.settings.get("run.script"), job.settings.get("run.module")
    if parsed.entry_kind is not None and parsed.entry is not None:
        if job.trainer:
            key, how = next(iter(job.trainer)), "put the script's arguments after it, or under [run] args"
            raise JobError(
                f"{job.file.name}: {key!r} is a key of the bundled trainer, but {parsed.entry!r} is to run: {how}"
            )
        # The job file's arguments come first if both specify the same entry.
        args = (job.args or ()) if parsed.entry in {script, module} else ()
        return parsed.entry_kind, parsed.entry, args + parsed.entry_args
    if script or module:
        key = "run.script" if script else "run.module"
        _require_fitting(parsed, job, key)
        look.note(key, script or module, job.origin(key))
        return (EntryKind.SCRIPT if script else EntryKind.MODULE), str(script or module), job.args or ()
    if not job.file.name:
        raise JobError("nothing to run: name a script, -m MODULE, -- COMMAND, or --config FILE")
    if job.args:
        raise JobError(
            f"{job.file.name}: [run] args without script or module; the trainer's keys stand at the top"
        )
    return EntryKind.TRAINER, "trainer", ()


def _require_fitting(parsed: ParsedRun, job: FileSettings, key: str) -> None:
    """Reject a job file that names two things to run, or that mixes trainer keys with a script or module."""
    if {"run.script", "run.module"} <= job.settings.keys():
        raise JobError(f"{job.file.name}: [run] names both a script and a module; keep one")
    own = [name for name in (*job.trainer, *(name for name, _ in parsed.spec_keys)) if name not in FLAT]
    if own:
        what = f"is a key of the bundled trainer, but [run] names {job.settings[key]!r}"
        raise JobError(f"{job.file.name}: {own[0]!r} {what}: put its arguments under [run] args")


def _nproc(value: str, inputs: JobInputs) -> int:
    check_nproc(value)
    if value.isdigit():
        return int(value)
    if value == "cpu" or (value == "auto" and inputs.gpus == 0):
        return inputs.cpus
    if inputs.gpus == 0:
        raise JobError(f"--nproc-per-node {value}: no GPU is visible here; give a number, or cpu")
    return inputs.gpus


def _nodes(value: str, *, shared: bool) -> int | None:
    """Return the number of nodes, or None for an elastic range, whose world size is not known in advance.

    If all nodes share a run directory, a range counts as its maximum, and the number is settled before each launch.
    """
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", value)
    if match is None or int(match[1]) < 1 or (match[2] and int(match[2]) < int(match[1])):
        raise JobError(f"--nnodes wants a whole number of at least 1, or MIN:MAX, got {value!r}")
    return int(match[2] or match[1]) if shared or match[2] in {None, match[1]} else None


def _on_first_gpu(
    run: dict[str, Any],
    flags: tuple[str, ...],
    env: tuple[tuple[str, str], ...],
    gpus: int,
    look: Resolver,
    why: str,
) -> tuple[dict[str, Any], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return settings, torchrun flags and environment for a single rank on this machine's first visible GPU, if any."""
    if why == "--single-gpu":
        look.note("run.single_gpu", "true", f"flag {why}")
    look.note("run.nproc_per_node", 1, why)
    if run["nnodes"] not in {"1", "1:1"}:
        look.note("run.nnodes", 1, why)
        left = {name: value for name, value in run.items() if name not in {"master_addr", "master_port"}}
        run = {**left, "nnodes": "1", "node_rank": 0}
        flags = tuple(flag for flag in flags if not flag.startswith("--rdzv-"))
    named = dict(env).get(VISIBLE, look.env.get(VISIBLE))
    first = (named if named is not None else "0" if gpus else "").split(",")[0].strip()
    if first not in {"", "-1", named}:
        look.note(f"env.{VISIBLE}", first, f"{why}: the first that is visible")
        env = (*((name, value) for name, value in env if name != VISIBLE), (VISIBLE, first))
    return run, flags, env


def _instrument(look: Resolver) -> bool:
    enabled: bool = look.get("instrument.enabled")
    for flag, value in (("instrument", True), ("no_instrument", False)):
        if look.parsed.switch(flag):
            enabled = look.put("instrument.enabled", value, flag)
    return enabled


def _trial(look: Resolver) -> TrialSettings | None:
    trial = TrialSettings(
        look.get("run.trial_steps"), look.get("run.trial_timeout_s"), flags=_launcher_flags(look.parsed)
    )
    if look.parsed.switch("trial"):
        look.note("run.trial", "true", "flag --trial")
        return trial
    if look.parsed.flag("trial_steps"):
        raise JobError("--trial-steps is of a trial: say --trial too")
    return None


def _default_name(kind: EntryKind, entry: str, job_file: ConfigFile | None) -> str:
    source = job_file.name if kind is EntryKind.TRAINER and job_file else entry
    last = posixpath.basename(source)
    if kind is EntryKind.MODULE:
        return last.rpartition(".")[2] or last
    return (last.rpartition(".")[0] or last) or "run"


def _launcher_flags(parsed: ParsedRun) -> tuple[str, ...]:
    """Return the torchrun flags that stoker does not own and that have no field in JobSpec, in the form ``--flag=value``."""
    fields = {"nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port"}
    flags = []
    for key, value in dict(parsed.torchrun).items():
        if key not in fields:
            name = "--" + key.replace("_", "-")
            flags.append(name if value == "true" else f"{name}={value}")
    return tuple(flags)


def _env(look: Resolver) -> tuple[tuple[str, str], ...]:
    merged: dict[str, str] = {}
    for file in reversed(look.layers):
        for name, value in file.env.items():
            merged[name] = value
            look.note(f"env.{name}", value, file.origin(f"env.{name}"))
    for pair in look.parsed.flags("env"):
        name, _, value = pair.partition("=")
        merged[name] = value
        look.note(f"env.{name}", value, "flag --env")
    return tuple(merged.items())


def _retry(look: Resolver) -> RetrySettings:
    classes: dict[str, dict[str, Any]] = {}
    for file in reversed(look.layers):
        for name, table in file.classes.items():
            classes.setdefault(name, {}).update(table)
            for key, value in table.items():
                look.note(f"policy.{name}.{key}", value, file.origin(f"policy.{name}.{key}"))
    held = {"enabled": look.get("policy.retry"), **_table(look, RetrySettings, "policy")}
    if look.parsed.switch("no_retry"):
        held["enabled"] = look.put("policy.retry", False, "no_retry")
    if look.parsed.switch("trust_exit_code"):
        held["exit_zero"] = look.put("policy.exit_zero", "trust", "trust_exit_code")
    keys = ("answer", "max", "delay_s", "change", "show_first", "wait_s")
    overrides = [ClassOverride(name, *map(table.get, keys)) for name, table in classes.items()]
    own = nearest_signatures(file.signatures for file in look.layers).values()
    overrides += [override for override in own if override is not None]
    return RetrySettings(**held, overrides=tuple(overrides))


def _with_trainer(spec: JobSpec, look: Resolver, world: int | None) -> JobSpec:
    """Fill in the bundled trainer's flags, knobs and batch from its keys."""
    values, from_file = _trainer_values(look)
    trial = spec.trial
    if trial is not None:
        resumes = bool(values.get("resume_from"))
        wanted: dict[str, Any] = {}
        # A checkpoint may already be beyond these steps. The trial is then stopped once the steps are seen.
        if not resumes and values.get("num_iterations", _TRAINER_DEFAULTS["num_iterations"]) > trial.steps:
            wanted["num_iterations"] = trial.steps
        if values.get("checkpoint_dir"):  # save in the run directory, where no real run resumes
            wanted["checkpoint_dir"] = ""
        before = {key: _flag_text(values[key]) if key in values else None for key in wanted}
        knobs = tuple(TrialKnob(f"--{key}", str(value), before[key]) for key, value in wanted.items())
        for key, value in wanted.items():
            look.note(key, value, "--trial")
        trial = replace(trial, ends_itself=not resumes, knobs=knobs, args=_trainer_args(values))
        values |= wanted
    effective = {**_TRAINER_DEFAULTS, **values}
    batch = None
    if world is not None:
        total, steps = effective["total_batch_size"], effective["gradient_accumulation_steps"]
        # As in the trainer, a total overrides the steps, and 0 means "follows from the rest".
        batch = resolve_batch(
            world_size=world,
            micro_batch=effective["device_batch_size"],
            global_batch=total if total > 0 else None,
            accumulation=max(steps, 1) if total <= 0 else None,
            unit=BatchUnit.TOKENS,
            tokens_per_sample=effective["max_seq_len"],
        )
    args = _trainer_args(values)
    # The expected memory in the file holds for its own model, length and batch.
    expects = from_file >= values.keys() & _TAKES_MEMORY
    return replace(
        spec,
        entry_args=args,
        expected_memory_bytes=spec.expected_memory_bytes if expects else None,
        trial=trial,
        notes=(*spec.notes, *trial_notes(trial)),
        knobs=TRAINER_KNOBS,
        batch=batch,
        loader=find_loader(args),
        group_timeout_s=longer_than_usual(values.get("dist_timeout_s")),
        total_steps=spec.total_steps or effective["num_iterations"],
    )


def _trainer_values(look: Resolver) -> tuple[dict[str, Any], set[str]]:
    """Return the values of the trainer keys that were set, and the keys whose values come from the job file."""
    job = look.layers[0]
    values = dict(job.trainer)
    for key, value in values.items():
        look.note(key, value, job.origin(key))
    over: dict[str, tuple[Any, str]] = {}
    for key, setting in TRAINER_KEYS.items():
        # The wire protocol's own names are not settings. STOKER_TELEMETRY_DIR comes from an outer stoker.
        name = f"STOKER_{key.upper()}"
        if name in look.env and name not in WIRE_NAMES:
            over[key] = setting.held(name, look.env[name]), f"env {name}"
            look.note(key, *over[key])
    for given, text in look.parsed.spec_keys:
        key = ALIASES.get(given, given)
        if key in TRAINER_KEYS:
            over[key] = TRAINER_KEYS[key].held(f"--{given}", text), f"flag --{given}"
            look.note(key, *over[key])
    for name, key in (("batch.micro", "device_batch_size"), ("batch.global", "total_batch_size")):
        if (number := look.get(name)) is not None:
            over[key] = number, look.origins[-1][2]
            look.note(key, *over[key])
    return {**values, **{key: value for key, (value, _) in over.items()}}, values.keys() - over.keys()


_TAKES_MEMORY: Final = frozenset(
    ("depth", "model_dim", "head_dim", "vocab_size", "tie_embeddings", "gradient_checkpointing", "compile",
     "device_batch_size", "max_seq_len", "dtype", "mixed_precision", "shard", "ema_decay", "device")
)  # fmt: skip
"""Trainer keys that affect how much memory a rank needs."""


def _trainer_args(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"--{key}={_flag_text(value)}" for key, value in values.items())


def _flag_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
