"""Plans a launch as data. Formats it as a command to paste, or as the command that starts the job again."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from supervisor.job.arguments.command_line import differing, set_value, value_of
from supervisor.job.arguments.run_arguments import STOKER_FLAGS, TORCHRUN_FLAGS
from supervisor.job.batch import BatchSpec, describe
from supervisor.job.errors import JobError, NotResumableError
from supervisor.job.knobs import set_batch as kn
from supervisor.job.knobs.measured_knobs import RankProcess
from supervisor.job.knobs.setting_names import ENV, Place, config_file, is_argument, place_of
from supervisor.job.launch.env import APPLY, UNREACHED, EnvChange, environment, is_measured
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.text.decode import printable, shell_word
from supervisor.text.redact import HIDDEN, redact, redact_argv, redact_text

LOOPBACK: Final = "127.0.0.1"
# Flags by which the user controls the rendezvous.
_ENDPOINT: Final = "--rdzv-endpoint="
ENDPOINT_PORT: Final = 29_400  # torch/distributed/elastic/rendezvous
MASTER_PORT: Final = 29_500  # torch/distributed/run.py
_RENDEZVOUS: Final = ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--standalone")


@dataclass(frozen=True, slots=True)
class CheckpointCopy:
    """A checkpoint copy to resume from: hard links, except for a state whose `field` is changed from `before` to `after`."""

    source: str
    target: str
    field: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What an attempt executes: argv, environment changes with reasons, working directory and batch sizes.

    `env` includes `wire_env` (STOKER_RUN_DIR, ...). `supervised_as` is "torchrun" for torchrun ranks with a --log-dir
    tree, or "command" if the child's stdout and stderr are the only logs. `notes` say what was replaced in the user's
    command, and why. `port` is the plan's port on this machine, if known (`port_named` if the user chose it). `copy`, a
    modified checkpoint of step `resume_at`, must exist before launch. `applied` has the values set inside the ranks.
    """

    attempt: int
    argv: tuple[str, ...]
    cwd: str
    env: tuple[EnvChange, ...]
    supervised_as: str
    torchrun_log_dir: str | None
    batch: BatchSpec | None
    world_size: int
    local_world_size: int
    resume: str | None = None
    notes: tuple[str, ...] = ()
    port: int | None = None
    port_named: bool = False
    copy: CheckpointCopy | None = None
    resume_at: int | None = None
    applied: tuple[tuple[str, str], ...] = ()


def wants_port(spec: JobSpec) -> bool:
    """Check whether the caller must pass a free port to `build_plan`: torchrun on a single machine, with no port named."""
    return (
        spec.entry_kind is not EntryKind.COMMAND
        and not spec.several_nodes
        and spec.master_port is None
        and not any(_has(spec, flag) for flag in _RENDEZVOUS)
    )


def build_plan(
    spec: JobSpec,
    *,
    attempt: int,
    interpreter: str,
    run_dir: str,
    attempt_dir: str,
    base_env: Mapping[str, str],
    port: int | None = None,
    trainer_main: str | None = None,
    batch: BatchSpec | None = None,
    env: Sequence[tuple[str, str]] = (),
    set_args: Sequence[tuple[str, str]] = (),
    resume: bool | None = None,
    node_dir: str | None = None,
    rank: RankProcess | None = None,
    confirm: bool = False,
) -> LaunchPlan:
    """Plan a launch without side effects.

    Args:
        spec: the job.
        attempt: the attempt number, starting from 1.
        interpreter: the path of the target's Python.
        run_dir: the absolute path of the run directory.
        attempt_dir: the absolute path of this attempt's folder.
        base_env: the environment that the changes apply to.
        port: a free port, if `wants_port`. Without one, torchrun picks its own (--standalone).
        trainer_main: the absolute path of the bundled trainer's ``__main__.py`` (EntryKind.TRAINER).
        batch: this attempt's batch, if it differs from the job's.
        env: variables added by the policy or the user, over all attempts so far.
        set_args: (flag, value) pairs added the same way. An empty value means a bare switch.
        resume: whether to resume; None means from attempt 2 on. Pass False to start from scratch, or as long as a job
            that names its own initial checkpoint has not committed anything.
        node_dir: this node's folder in a run directory shared by several nodes.
        rank: a measured rank process. Settings that the launch command cannot reach are changed inside the new ranks.
        confirm: whether this attempt's saves wait until the attempt is seen to be training as planned.

    Raises:
        JobError: the batch must change but its knobs are unknown.
        NotResumableError: the knobs cannot be set because nothing is measured.
    """
    args, effective = spec.entry_args, batch or spec.batch
    pairs = list(spec.set_knobs)
    if batch is not None and batch != spec.batch:
        pairs += kn.batch_values(spec.knobs, batch, before=spec.batch, local_world_size=spec.nproc_per_node)
    pairs += set_args
    resumed, resume_pairs = _resume(spec, dict(set_args), attempt, resume)
    pairs += resume_pairs
    pairs, applied = _reached(spec, pairs, rank)
    for name, value in pairs:
        args = set_value(args, name, value) if is_argument(name) else args
    variables = {name.removeprefix(ENV): value for name, value in pairs if not is_argument(name)}
    wire = {
        "STOKER_RUN_DIR": run_dir,
        "STOKER_ATTEMPT": str(attempt),
        "STOKER_TELEMETRY_DIR": f"{attempt_dir}/telemetry",
        "STOKER_STOP_FILE": f"{attempt_dir}/stop",
    }
    if node_dir is not None:
        wire["STOKER_NODE_DIR"] = node_dir
    if confirm:
        wire["STOKER_CONFIRM"] = f"{wire['STOKER_TELEMETRY_DIR']}/confirmed"
    if applied and not is_measured(spec, {**base_env, **dict(spec.env), **dict(env)}):
        raise NotResumableError(f"{applied[0][0]} {UNREACHED}: set it yourself")
    variables |= applied_in(rank, applied, spec.cwd)
    under_torchrun = spec.entry_kind is not EntryKind.COMMAND
    head: tuple[str, ...] = (spec.entry,)
    log_dir = chosen = None
    if under_torchrun:
        log_dir = f"{attempt_dir}/torchrun"
        chosen = spec.master_port if spec.master_port is not None or not wants_port(spec) else port
        launcher = (interpreter, "-m", "torch.distributed.run", *_torchrun_flags(spec, chosen))
        head = (*launcher, f"--log-dir={log_dir}", *_entry(spec, trainer_main))
    world = spec.world_size or spec.nproc_per_node * spec.least_nodes
    if effective is not None and effective.ranks_known:
        world = effective.world_size
    return LaunchPlan(
        attempt=attempt,
        argv=(*head, *args),
        cwd=spec.cwd,
        env=environment(spec, base=base_env, wire=wire, extra={**variables, **dict(env)}),
        supervised_as="torchrun" if under_torchrun else "command",
        torchrun_log_dir=log_dir,
        batch=effective,
        world_size=world,
        local_world_size=spec.nproc_per_node,
        resume=resumed,
        notes=spec.notes,
        port=chosen,
        port_named=spec.master_port is not None,
        applied=tuple(applied),
    )


def _reached(
    spec: JobSpec, pairs: list[tuple[str, str]], rank: RankProcess | None
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Split the settings into those that the launch sets and those set inside the ranks.

    If stoker starts the script, options go on the command line. For any other command, and for variables, it is unknown what
    reaches the ranks. A key in a file is set in each process that loads the file.
    """
    if rank is None or not rank.argv:
        words = [pair for pair in pairs if place_of(pair[0]) is not Place.FILE]
        return words, [pair for pair in pairs if pair not in words]
    is_script = spec.entry_kind is not EntryKind.COMMAND
    words = [pair for pair in pairs if is_script and is_argument(pair[0])]
    inside = [pair for pair in pairs if pair not in words]
    spelled = []
    for name, value in words:  # use the option's present spelling: change `-b 16`, do not add `--batch`
        present = (word for word in rank.words.get(name, ()) if value_of(spec.entry_args, word) is not None)
        spelled.append((next(present, name), value))
    return spelled, inside


def applied_in(rank: RankProcess | None, pairs: Sequence[tuple[str, str]], cwd: str) -> dict[str, str]:
    """Return the variables that carry a plan into ranks: `APPLY` as JSON (instrument/settings.py) and any that the plan sets."""
    if not pairs:
        return {}
    rank = rank or RankProcess()
    options: list[dict[str, object]] = []
    environ: dict[str, str] = {}
    files: list[dict[str, object]] = []
    for name, text in pairs:
        value = int(text) if text.isdecimal() else text
        match place_of(name):
            case Place.ARGUMENT:
                words = list(rank.words.get(name) or (name,))
                options.append({"words": words, "name": name, "value": value if text else True})
            case Place.ENVIRONMENT:
                environ[name.removeprefix(ENV)] = text
            case Place.FILE:
                file, _, key = name.partition("#")
                files.append({"path": posixpath.join(cwd, config_file(file)), "key": key, "value": value})
    plan = {"argv": list(rank.argv) or None, "options": options, "environ": environ, "files": files}
    return {**environ, APPLY: json.dumps(plan)}


def _torchrun_flags(spec: JobSpec, port: int | None) -> list[str]:
    flags = [f"--nproc-per-node={spec.nproc_per_node}", f"--nnodes={spec.nnodes}"]
    # torchrun never restarts, because its second attempt would repeat the first one without the smaller
    # batch. Its exit code carries no information (1 for any failure).
    flags += ["--max-restarts=0", "--redirects=3"]
    if spec.several_nodes:
        flags.append(f"--node-rank={spec.node_rank}")
        flags += [f"--master-addr={spec.master_addr}"] if spec.master_addr else []
        flags += [f"--master-port={port}"] if port is not None else []
    elif port is not None:
        # Use a static rendezvous on a port of our choice, not --standalone, so that the port is known before
        # the launch. The port can then be checked, shown in a verdict, and changed if taken. Use loopback,
        # because the host's own name may resolve to an address that does not answer.
        flags += [f"--master-addr={spec.master_addr or LOOPBACK}", f"--master-port={port}"]
    elif not any(_has(spec, flag) for flag in _RENDEZVOUS):
        flags.append("--standalone")
    return flags + list(spec.torchrun_flags)


def _entry(spec: JobSpec, trainer_main: str | None) -> tuple[str, ...]:
    if spec.entry_kind is EntryKind.MODULE:
        return ("-m", spec.entry)
    if spec.entry_kind is not EntryKind.TRAINER:
        return (spec.entry,)
    if trainer_main is None:
        raise JobError("the bundled trainer was not found: install stoker[trainer], or name a script")
    return (trainer_main,)


def _resume(
    spec: JobSpec, chosen: Mapping[str, str], attempt: int, resume: bool | None
) -> tuple[str | None, list[tuple[str, str]]]:
    """Return what this attempt resumes from and the settings that make it do so. `chosen` is set by the policy or the user."""
    knobs = spec.knobs
    by_step = chosen.get(knobs.resume_step or "")
    if by_step is not None:
        return f"{knobs.resume_step} {by_step}", []
    if (start := chosen.get(knobs.start or "")) is not None:
        return start, []  # an explicitly chosen checkpoint, not the newest one
    if knobs.resume is None:
        return None, []
    own = value_of(spec.entry_args, knobs.resume)
    # A checkpoint named by the user stays the starting point until a newer one is known to exist.
    wanted = resume if resume is not None else attempt > 1 and own in {None, "", knobs.resume_value}
    if not wanted:
        return own, []
    return knobs.resume_value or knobs.resume, [(knobs.resume, knobs.resume_value)]


def _has(spec: JobSpec, flag: str) -> bool:
    return any(given.partition("=")[0] == flag for given in spec.torchrun_flags)


def plan_as_shell(plan: LaunchPlan) -> str:
    """Format the plan as text to read and paste into a shell, with secrets hidden.

    Every environment change is listed above the command with its reason. The value of a secret variable comes
    from the shell that runs the command.
    """
    lines = [f"# note: {printable(redact_text(note))}" for note in plan.notes]
    if plan.batch is not None:
        lines.append(f"# batch: {describe(plan.batch)}")
    removed, assigned = [], []
    reasons: dict[str, list[str]] = {}
    for change in plan.env:
        hidden = change.value is not None and redact(change.name, change.value) == HIDDEN
        reason = printable(change.reason) + (" (value not shown: export it first)" if hidden else "")
        reasons.setdefault(reason, []).append(change.name)
        if change.value is None:
            removed.append(f"-u {change.name}")
        else:
            shown = f'"${change.name}"' if hidden else shell_word(redact(change.name, change.value))
            assigned.append(f"{change.name}={shown}")
    lines += [f"# {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    words = [shell_word(word) for word in redact_argv(plan.argv)]
    command = " \\\n  ".join([f"cd {shell_word(plan.cwd)} && env", *removed, *assigned, " ".join(words)])
    return "\n".join([*lines, command])


def plan_as_record(plan: LaunchPlan) -> dict[str, Any]:
    """Return the plan as plain data for plan.json, with secrets redacted and tuples as lists."""
    batch, copy = plan.batch, plan.copy
    env = [(change.name, change.value, change.reason) for change in plan.env]
    return {
        "schema": 1,
        "attempt": plan.attempt,
        "argv": list(redact_argv(plan.argv)),
        "cwd": plan.cwd,
        "env": [
            {"name": name, "value": value and redact(name, value), "reason": reason}
            for name, value, reason in env
        ],
        "supervised_as": plan.supervised_as,
        "torchrun_log_dir": plan.torchrun_log_dir,
        "batch": batch and {**asdict(batch), "unit": batch.unit.value, "global_batch": batch.global_batch},
        "world_size": plan.world_size,
        "local_world_size": plan.local_world_size,
        "resume": plan.resume and redact_text(plan.resume),
        "notes": list(map(redact_text, plan.notes)),
        "port": plan.port,
        "applied": {name: redact(name, value) for name, value in plan.applied},
        "resume_copy": copy
        and {"source": copy.source, "copy": copy.target, "values": {copy.field: [copy.before, copy.after]}},
    }


def endpoint_of(job: JobSpec) -> tuple[str, int | None]:
    """Return the host ("" if not given) and port (None if invalid) in ``--rdzv-endpoint``, split as torchrun does.

    See parse_rendezvous_endpoint in torch/distributed/elastic/rendezvous/utils.py.
    """
    endpoint = endpoint_named(job)
    if endpoint.startswith("[") and endpoint.endswith("]"):
        return endpoint[1:-1], ENDPOINT_PORT
    host, colon, port = endpoint.rpartition(":")
    if not colon:
        return endpoint, ENDPOINT_PORT
    number = int(port) if port.isdecimal() else 2**16
    return host.removeprefix("[").removesuffix("]"), number if number < 2**16 else None


def endpoint_named(job: JobSpec) -> str:
    """Return the value of ``--rdzv-endpoint`` as given, or an empty string if the flag was not given."""
    return next(
        (flag.removeprefix(_ENDPOINT) for flag in job.torchrun_flags if flag.startswith(_ENDPOINT)), ""
    ).strip()


# These differ in every attempt and tell the user nothing.
_OF_EACH: Final = ("--log-dir=", "--master-port=")
_OWN_NAMES: Final = "STOKER_"


def diff_lines(
    before: Mapping[str, Any], after: Mapping[str, Any], first_values: Mapping[str, object]
) -> tuple[str, ...]:
    """Return the diff of two plans in `plan_as_record` format, as "- old" and "+ new" lines, arguments first.

    Args:
        before: the plan of the attempt that just finished.
        after: the plan of the next attempt.
        first_values: the values in the script's own config files, keyed by setting name.
    """
    lines: list[str] = []

    def tell(old: str | None, new: str | None) -> None:
        lines.extend([f"- {old}"] if old is not None else [])
        lines.extend([f"+ {new}"] if new is not None else [])

    words = ([word for word in plan["argv"] if not word.startswith(_OF_EACH)] for plan in (before, after))
    for name, values in differing(*words):
        tell(*(None if value is None else f"{name} {value}".rstrip() for value in values))
    old, new = _variables(before), _variables(after)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            tell(*(f"{name}={each[name]}" if name in each else None for each in (old, new)))
    put = {**first_values, **before.get("applied", {})}
    for name, value in after.get("applied", {}).items():
        was = put.get(name)
        if str(was) != value and not name.startswith(ENV):  # variables are listed above
            tell(None if was is None else f"{name} {was} (in the ranks)", f"{name} {value} (in the ranks)")
    if copy := after.get("resume_copy"):
        for field, (was_set, is_set) in copy["values"].items():
            where = f"{copy['source']}: {field}"
            tell(f"{where}: {was_set}", f"{where}: {is_set} (in a copy)")
    return tuple(lines)


def _variables(plan: Mapping[str, Any]) -> dict[str, str]:
    return {
        change["name"]: str(change["value"])
        for change in plan["env"]
        if not change["name"].startswith(_OWN_NAMES) and change["value"] is not None
    }


# The origin that `settings.Resolver` records for values from the command line.
_GIVEN: Final = "flag --"
_OURS: Final = {flag.name: flag.takes_value for flag in (*STOKER_FLAGS, *TORCHRUN_FLAGS)}
_ENV: Final = "env."
_SAFE: Final = re.compile(r"[\w@%+=:,./<>…-]+")


def real_command_of(job: JobSpec) -> str | None:
    """Return the command for the real run that a trial prepares, or None if `command_of` returns None."""
    rows = tuple(row for row in job.origins if not row[2].startswith("flag --trial"))
    return command_of(replace(job, origins=rows))


def command_of(job: JobSpec, more: Sequence[str] = ()) -> str | None:
    """Return the command that starts the job again, e.g. ``stoker run train.py --lr 3e-4``, or None if none started it.

    The flags in `more` are added, file and environment settings are read again, and secrets stay hidden, as recorded.
    """
    words = ["stoker", "run", *more]
    if job.config_path is not None:
        words += ["--config", job.config_path]
    for name, value, origin in job.origins:
        if not origin.startswith(_GIVEN):
            continue
        flag = origin.removeprefix("flag ")
        if _OURS.get(flag) is False:
            words.append(flag)
        elif name.startswith(_ENV):
            words += [flag, f"{name.removeprefix(_ENV)}={value}"]
        elif flag in _OURS:
            words += [flag, value]
        else:
            words.append(f"{flag}={value}")
    words += job.given
    args, flags = job.entry_args, job.torchrun_flags
    if job.trial is not None:
        args, flags = job.trial.args, job.trial.flags
    words += flags
    before = {EntryKind.SCRIPT: [], EntryKind.MODULE: ["-m"], EntryKind.COMMAND: ["--"]}
    by_file = any(
        key in {"run.script", "run.module"} and not origin.startswith(_GIVEN)
        for key, _, origin in job.origins
    )
    if job.entry_kind is EntryKind.TRAINER and job.config_path is None:
        return None
    if job.entry_kind is not EntryKind.TRAINER and not by_file:
        words += [*before[job.entry_kind], job.entry, *args]
    return " ".join(word if _SAFE.fullmatch(word) else shell_word(word) for word in words)
