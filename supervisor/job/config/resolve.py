"""Resolves a parsed command line, files and environment into one frozen JobSpec."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from supervisor.job.arguments.run_arguments import ParsedRun, check_nproc
from supervisor.job.batch import BatchSpec, BatchUnit
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

# The bundled trainer's settings, as far as a batch and a restart need them.
_TRAINER_DEFAULTS: Final[dict[str, Any]] = {key: setting.default for key, setting in TRAINER_KEYS.items()}
TRAINER_KNOBS: Final = Knobs(
    batch="--device_batch_size",
    batch_scope=KnobScope.PER_RANK,
    global_batch="--total_batch_size",
    resume="--resume_from",
    resume_value="auto",
    declared=True,
)


# The file is in `config_path`; a folder of several nodes must be new each time.
_OF_ONE_START: Final = frozenset(("config", "run_dir", "dry_run", "show_config", "check_only"))


@dataclass(frozen=True, slots=True)
class JobInputs:
    """The inputs for resolving a job. The caller opened the files and counted the devices.

    `read` opens a file below `cwd`: one with a declared key.
    `failure_classes` are the possible names in ``[policy.<class>]``.
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
    """Resolves one job.

    Raises:
        JobError: nothing to run, an unknown key, a value of the wrong type, a batch that does not divide.
    """
    files = _layers(inputs)
    look = Resolver(inputs.parsed, inputs.env, files)
    label, job = files[0]
    kind, entry, args = _entry(inputs, job, look, label)
    trial = _trial(look)
    alone = "--trial" if trial is not None else "--single-gpu" if inputs.parsed.switch("single_gpu") else ""
    run = _table(look, JobSpec, "run")
    nproc = _nproc("1" if alone else run["nproc_per_node"], inputs)
    nodes = _nodes(run["nnodes"], shared=inputs.parsed.flag("run_dir") is not None)
    if nodes is not None and run["node_rank"] >= nodes:
        raise JobError(f"--node-rank {run['node_rank']} is not below --nnodes {run['nnodes']}")
    flags, env = _launcher_flags(inputs.parsed), _env(inputs, files, look)
    if alone:
        run, flags = _of_one_rank(run, flags, look, alone)
        env, nodes = _first_gpu(env, inputs, look, alone), 1
    retry, gib = _retry(inputs, files, look), look.get("run.expected_memory_gib")
    if inputs.parsed.flags("min_ranks") and retry.min_ranks is not None and retry.min_ranks > nproc:
        raise JobError(f"--min-ranks {retry.min_ranks} is more than the {nproc} of --nproc-per-node")
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
        hang=_hang(look),
        instrument=_instrument(inputs, look),
        fit=fit if inputs.parsed.switch("fit_batch") else None,
        trial=trial,
        expected_memory_bytes=int(gib * 2**30) if gib is not None else None,
        config_path=inputs.job_file.name if inputs.job_file else None,
        metric_rules=tuple(rule for _, file in files for rule in file.metrics),
        signatures=tuple(nearest_signatures(file.signatures for _, file in files)),
        notes=inputs.parsed.notes,
        **{"name": _default_name(kind, entry, inputs.job_file), **run, "nproc_per_node": nproc},
    )
    world = nproc * nodes if nodes is not None else None
    if kind is EntryKind.TRAINER:
        spec = _with_trainer(spec, inputs, files[0], look, world)
    else:
        gpus = min(inputs.gpus, 1) if alone else inputs.gpus
        spec = with_knobs(spec, look, world, read=inputs.read, gpus=gpus, alone=alone)
    spec = refuse_unreached(spec, {**inputs.env, **dict(spec.env)})
    return replace(spec, origins=tuple(look.origins), given=tuple(_given(look)))


def _table(look: Resolver, kind: type[Any], table: str) -> dict[str, Any]:
    """The fields of a record that are settings of a table, with their values, without empty ones."""
    keys = {field.name: f"{table}.{field.name}" for field in fields(kind)}
    held = {name: look.get(key) for name, key in keys.items() if key in SETTINGS}
    return {name: value for name, value in held.items() if value is not None}


def resolve_retry(inputs: JobInputs) -> RetrySettings:
    """Only the limits on restarts, as `resolve_job` would resolve them.

    Raises:
        JobError: an unknown key or a value of the wrong type.
    """
    files = _layers(inputs)
    return _retry(inputs, files, Resolver(inputs.parsed, inputs.env, files))


def _given(look: Resolver) -> Iterator[str]:
    """Command-line flags that no setting records, as words, without those that start nothing or apply to one start only."""
    noted = {origin for _, _, origin in look.origins}
    for key, value in dict(look.parsed.stoker).items():
        name = f"--{key.replace('_', '-')}"
        if f"flag {name}" not in noted and key not in _OF_ONE_START and value != "false":
            yield from (name,) if value == "true" else (name, value)


def screen_settings(inputs: JobInputs) -> tuple[tuple[str, str, str], ...]:
    """The settings outside jobs, of the screen and of runs, as rows of `JobSpec.origins`.

    Raises:
        JobError: a value is not allowed.
    """
    look = Resolver(inputs.parsed, inputs.env, _layers(inputs))
    for key in SETTINGS:
        if key.partition(".")[0] in OF_NO_JOB:
            look.get(key)
    return tuple(look.origins)


def _layers(inputs: JobInputs) -> tuple[tuple[str, FileSettings], ...]:
    named = inputs.job_file
    return (
        (
            "preset" if named is not None and named.is_preset else "job file",
            check_file(named, classes=inputs.failure_classes, is_job=True),
        ),
        ("project", check_file(inputs.project, classes=inputs.failure_classes, is_job=False)),
        ("user", check_file(inputs.user, classes=inputs.failure_classes, is_job=False)),
    )


def _entry(
    inputs: JobInputs, job: FileSettings, look: Resolver, label: str
) -> tuple[EntryKind, str, tuple[str, ...]]:
    parsed = inputs.parsed
    if parsed.entry_kind is not None and parsed.entry is not None:
        return _named_entry(parsed.entry_kind, parsed.entry, parsed, job)
    script, module = job.settings.get("run.script"), job.settings.get("run.module")
    if script or module:
        return _entry_of_file(inputs, job, look, label, script, module)
    if inputs.job_file is None:
        raise JobError("nothing to run: name a script, -m MODULE, -- COMMAND, or --config FILE")
    if job.args:
        raise JobError(
            f"{job.name}: [run] args without script or module; the trainer's keys stand at the top"
        )
    return EntryKind.TRAINER, "trainer", ()


def _named_entry(
    kind: EntryKind, entry: str, parsed: ParsedRun, job: FileSettings
) -> tuple[EntryKind, str, tuple[str, ...]]:
    """The entry on the command line; the job file's arguments come first if both name the same entry."""
    if job.trainer:
        key = next(iter(job.trainer))
        raise JobError(
            f"{job.name}: {key!r} is a key of the bundled trainer, but {entry!r} is to run: "
            f"put the script's arguments after it, or under [run] args"
        )
    same = entry in {job.settings.get("run.script"), job.settings.get("run.module")}
    return kind, entry, ((job.args or ()) + parsed.entry_args if same else parsed.entry_args)


def _entry_of_file(
    inputs: JobInputs, job: FileSettings, look: Resolver, label: str, script: str | None, module: str | None
) -> tuple[EntryKind, str, tuple[str, ...]]:
    """The entry of the job file."""
    if script and module:
        raise JobError(f"{job.name}: [run] names both a script and a module; keep one")
    foreign = [k for k in (*job.trainer, *(k for k, _ in inputs.parsed.spec_keys)) if k not in FLAT]
    if foreign:
        raise JobError(
            f"{job.name}: {foreign[0]!r} is a key of the bundled trainer, but [run] names {script or module!r}: "
            f"put its arguments under [run] args"
        )
    key = "run.script" if script else "run.module"
    look.note(key, script or module, f"{label} {job.at(key)}")
    return (EntryKind.SCRIPT if script else EntryKind.MODULE), str(script or module), job.args or ()


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
    """The number of nodes; None for an elastic range, whose world size is unknown in advance.

    In a run directory shared by all nodes, a range counts as its maximum: the number is settled before each launch.
    """
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", value)
    if match is None or int(match[1]) < 1 or (match[2] and int(match[2]) < int(match[1])):
        raise JobError(f"--nnodes wants a whole number of at least 1, or MIN:MAX, got {value!r}")
    return int(match[2] or match[1]) if shared or match[2] in {None, match[1]} else None


def _of_one_rank(
    run: dict[str, Any], flags: tuple[str, ...], look: Resolver, why: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings for one rank on this machine, without a rendezvous of several."""
    if why == "--single-gpu":
        look.note("run.single_gpu", "true", f"flag {why}")
    look.note("run.nproc_per_node", 1, why)
    if run["nnodes"] in {"1", "1:1"}:
        return run, flags
    look.note("run.nnodes", 1, why)
    left = {name: value for name, value in run.items() if name not in {"master_addr", "master_port"}}
    flags = tuple(flag for flag in flags if not flag.startswith("--rdzv-"))
    return {**left, "nnodes": "1", "node_rank": 0}, flags


def _first_gpu(
    env: tuple[tuple[str, str], ...], inputs: JobInputs, look: Resolver, why: str
) -> tuple[tuple[str, str], ...]:
    """The environment with only the first visible GPU; unchanged if none is visible."""
    seen = dict(env).get(VISIBLE, inputs.env.get(VISIBLE, "0" if inputs.gpus else ""))
    first = seen.split(",")[0].strip()
    if first in {"", "-1"} or first == dict(env).get(VISIBLE, inputs.env.get(VISIBLE)):
        return env
    look.note(f"env.{VISIBLE}", first, f"{why}: the first that is visible")
    return (*((name, value) for name, value in env if name != VISIBLE), (VISIBLE, first))


def _trial(look: Resolver) -> TrialSettings | None:
    steps, timeout_s = look.get("run.trial_steps"), look.get("run.trial_timeout_s")
    if not look.parsed.switch("trial"):
        if look.parsed.flag("trial_steps"):
            raise JobError("--trial-steps is of a trial: say --trial too")
        return None
    look.note("run.trial", "true", "flag --trial")
    return TrialSettings(steps=steps, timeout_s=timeout_s, flags=_launcher_flags(look.parsed))


def _default_name(kind: EntryKind, entry: str, job_file: ConfigFile | None) -> str:
    source = job_file.name if kind is EntryKind.TRAINER and job_file else entry
    last = posixpath.basename(source)
    if kind is EntryKind.MODULE:
        return last.rpartition(".")[2] or last
    return (last.rpartition(".")[0] or last) or "run"


def _launcher_flags(parsed: ParsedRun) -> tuple[str, ...]:
    """torchrun's flags that stoker does not own and JobSpec has no field for, as ``--flag=value``."""
    fields = {"nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port"}
    flags = []
    for key, value in dict(parsed.torchrun).items():
        if key not in fields:
            name = "--" + key.replace("_", "-")
            flags.append(name if value == "true" else f"{name}={value}")
    return (*flags, *parsed.unowned)


def _env(
    inputs: JobInputs, files: tuple[tuple[str, FileSettings], ...], look: Resolver
) -> tuple[tuple[str, str], ...]:
    merged: dict[str, str] = {}
    for label, file in reversed(files):
        for name, value in file.env.items():
            merged[name] = value
            look.note(f"env.{name}", value, f"{label} {file.at(f'env.{name}')}")
    for pair in inputs.parsed.flags("env"):
        name, _, value = pair.partition("=")
        merged[name] = value
        look.note(f"env.{name}", value, "flag --env")
    return tuple(merged.items())


def _retry(inputs: JobInputs, files: tuple[tuple[str, FileSettings], ...], look: Resolver) -> RetrySettings:
    classes: dict[str, dict[str, Any]] = {}
    for label, file in reversed(files):
        for name, table in file.classes.items():
            classes.setdefault(name, {}).update(table)
            for key, value in table.items():
                look.note(f"policy.{name}.{key}", value, f"{label} {file.at(f'policy.{name}.{key}')}")
    held = {"enabled": look.get("policy.retry"), **_table(look, RetrySettings, "policy")}
    if inputs.parsed.switch("no_retry"):
        held["enabled"] = False
        look.note("policy.retry", False, "flag --no-retry")
    if inputs.parsed.switch("trust_exit_code"):
        held["exit_zero"] = "trust"
        look.note("policy.exit_zero", "trust", "flag --trust-exit-code")
    keys = ("answer", "max", "delay_s", "change", "show_first", "wait_s")
    overrides = [ClassOverride(name, *map(table.get, keys)) for name, table in classes.items()]
    own = nearest_signatures(file.signatures for _, file in files).values()
    overrides += [override for override in own if override is not None]
    return RetrySettings(**held, overrides=tuple(overrides))


def _instrument(inputs: JobInputs, look: Resolver) -> bool:
    enabled: bool = look.get("instrument.enabled")
    for flag in ("instrument", "no_instrument"):
        if inputs.parsed.switch(flag):
            enabled = flag == "instrument"
            look.note("instrument.enabled", enabled, f"flag --{flag.replace('_', '-')}")
    return enabled


def _hang(look: Resolver) -> HangSettings:
    held = _table(look, HangSettings, "hang")
    given = any(key == "hang.act_s" and origin != "default" for key, _, origin in look.origins)
    return HangSettings(**held, act_given=given)


def _with_trainer(
    spec: JobSpec, inputs: JobInputs, file: tuple[str, FileSettings], look: Resolver, world: int | None
) -> JobSpec:
    """Fills in the bundled trainer's flags, knobs and batch from its keys."""
    values: dict[str, Any] = {}
    from_where: dict[str, str] = {}

    def put(key: str, value: object, origin: str) -> None:
        values[key], from_where[key] = value, origin
        look.note(key, value, origin)

    label, job = file
    for key, value in job.trainer.items():
        put(key, value, f"{label} {job.at(key)}")
    for key, setting in TRAINER_KEYS.items():
        # The wire's own names are not settings: STOKER_TELEMETRY_DIR comes from an outer stoker.
        name = f"STOKER_{key.upper()}"
        if name in inputs.env and name not in WIRE_NAMES:
            put(key, setting.held(name, inputs.env[name]), f"env {name}")
    for given, text in inputs.parsed.spec_keys:
        key = ALIASES.get(given, given)
        if key in TRAINER_KEYS:
            put(key, TRAINER_KEYS[key].held(f"--{given}", text), f"flag --{given}")
    for name, key in (("batch.micro", "device_batch_size"), ("batch.global", "total_batch_size")):
        number = look.get(name)
        if number is not None:
            put(key, number, look.origins[-1][2])
    trial = spec.trial
    if trial is not None:
        as_given = _trainer_args(values)
        values, knobs = _trainer_trial(values, trial)
        for knob in knobs:
            look.note(knob.name.removeprefix("--"), knob.value, "--trial")
        trial = replace(trial, ends_itself=not values.get("resume_from"), knobs=knobs, args=as_given)
    effective = {**_TRAINER_DEFAULTS, **values}
    batch = _trainer_batch(effective, world)
    steps = effective.get("num_iterations")
    args = _trainer_args(values)
    # The file's expectation is for its own model, length and batch.
    expects = all(from_where[key].startswith(f"{label} ") for key in values.keys() & _TAKES_MEMORY)
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
        total_steps=spec.total_steps or (steps if isinstance(steps, int) and steps > 0 else None),
    )


_TAKES_MEMORY: Final = frozenset(
    ("depth", "model_dim", "head_dim", "vocab_size", "tie_embeddings", "gradient_checkpointing", "compile",
     "device_batch_size", "max_seq_len", "dtype", "mixed_precision", "shard", "ema_decay", "device")
)  # fmt: skip
"""The trainer's keys that change how much a rank holds."""


def _trainer_args(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"--{key}={_flag_text(value)}" for key, value in values.items())


def _trainer_trial(
    values: Mapping[str, Any], trial: TrialSettings
) -> tuple[dict[str, Any], tuple[TrialKnob, ...]]:
    """The trainer's keys for a trial: few steps, and checkpoints in the run directory, so that no real run resumes from them."""
    wanted: dict[str, Any] = {}
    steps = values.get("num_iterations", _TRAINER_DEFAULTS["num_iterations"])
    # From a checkpoint it may start beyond them; then it is stopped once they are seen.
    if steps > trial.steps and not values.get("resume_from"):
        wanted["num_iterations"] = trial.steps
    if values.get("checkpoint_dir"):
        wanted["checkpoint_dir"] = ""
    knobs = tuple(
        TrialKnob(f"--{key}", str(value), None if key not in values else _flag_text(values[key]))
        for key, value in wanted.items()
    )
    return {**values, **wanted}, knobs


def _trainer_batch(values: Mapping[str, Any], world: int | None) -> BatchSpec | None:
    names = ("device_batch_size", "total_batch_size", "gradient_accumulation_steps", "max_seq_len")
    micro, total, steps, length = (values[name] for name in names)
    if world is None:
        return None
    # As the trainer reads them: a total wins over the steps; 0 means "follows from the rest".
    return resolve_batch(
        world_size=world,
        micro_batch=micro,
        global_batch=total if total > 0 else None,
        accumulation=max(steps, 1) if total <= 0 else None,
        unit=BatchUnit.TOKENS,
        tokens_per_sample=length,
    )


def _flag_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
