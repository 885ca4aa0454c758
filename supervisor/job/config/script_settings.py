"""Finds a script's batch and resume settings: declared, or conventionally named on the command line.

No source file, shell script or config file is read unless the user declared a key in it (``FILE#key``). Whatever
is still unknown is measured once the script runs (`measured`). If that does not settle it, the user is asked.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from supervisor.job.arguments.command_line import Launch, read_launch, set_value, settings_of, value_of
from supervisor.job.arguments.command_line import Setting as Argument
from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.job.config.files import read_values
from supervisor.job.config.setting_values import Resolver
from supervisor.job.errors import JobError
from supervisor.job.knobs import set_batch as kn
from supervisor.job.knobs.conventions import find_convention, find_loader
from supervisor.job.knobs.named_settings import SMALLER_GLOBAL, find_knobs
from supervisor.job.knobs.resume_settings import USUAL_OUTPUTS, find_outputs
from supervisor.job.knobs.set_batch import as_number
from supervisor.job.knobs.setting_names import (
    Place,
    Scalar,
    bare,
    config_file,
    is_argument,
    last_part,
    place_of,
    plain,
)
from supervisor.job.spec import (
    AccumulationCounts,
    EntryKind,
    JobSpec,
    Knobs,
    KnobScope,
    TrialKnob,
    TrialSettings,
)


def with_knobs(
    spec: JobSpec,
    look: Resolver,
    world: int | None,
    *,
    read: Callable[[str], str | None] | None = None,
    gpus: int = 0,
    alone: str = "",
) -> JobSpec:
    """Return `spec` with the script's settings and batch, after applying ``--micro-batch`` and ``--global-batch``.

    Args:
        spec: the job so far.
        look: looks up the settings.
        world: the total number of ranks, if known.
        read: opens a file, named as on the command line, that contains a declared key.
        gpus: the number of GPUs visible to the job.
        alone: the flag that requests a single rank, or empty if there is none.

    Raises:
        JobError: a requested batch cannot be set or does not divide evenly, or a command starts several ranks
            although a single one was requested.
    """
    opened = read or (lambda _: None)
    given, unit, tokens = _declared_knobs(look)
    wanted, total = look.get("batch.micro"), look.get("batch.global")
    launch, at = _launch(spec)
    if alone:
        _require_one_rank(spec, launch, alone)
    world = _world(spec, look, world, launch, gpus)
    where = _declared_values(given, {**look.env, **dict(spec.env)}, opened)
    knobs = find_knobs(spec.entry_args, given, elsewhere=where, world=world, program=launch.name, args_at=at)
    spec = replace(spec, world_size=world)
    if spec.entry_kind is EntryKind.COMMAND and knobs.batch_scope is KnobScope.PER_NODE:
        world = None  # the layout of the ranks on nodes is up to the command
    args = spec.entry_args
    set_knobs: dict[str, str] = {}  # knobs that are not arguments
    if wanted is not None:
        args = _set_knob(args, set_knobs, _rank_batch(knobs, wanted), str(wanted))
    if world == 1 and knobs.help == SMALLER_GLOBAL and knobs.batch_scope is KnobScope.UNKNOWN:
        knobs = replace(knobs, batch_scope=KnobScope.PER_RANK)  # the same as all ranks here
    counted = partial(
        kn.batch_of,
        args,
        elsewhere=where | set_knobs,
        unit=unit,
        tokens_per_sample=tokens,
        global_batch=total,
    )
    # A batch that the user spelled out must divide. A batch that was only found is up to the script.
    spelt_out = {given.batch, wanted, total} != {None}
    names_batch = given.batch is not None or given.batch_scope is not KnobScope.UNKNOWN
    may_shrink = spec.retry.allow_smaller_global or names_batch
    batch, knobs, notes = _batch(spec, knobs, world, counted, spelt_out=spelt_out, may_shrink=may_shrink)
    if total is not None:
        if batch is None:
            raise JobError(f"--global-batch {total} cannot be set: {kn.why_not_changeable(knobs)}")
        for name, value in kn.batch_values(knobs, batch, local_world_size=spec.nproc_per_node):
            args = _set_knob(args, set_knobs, name, value)
    _note_origins(look, knobs)
    written = find_outputs(settings_of(args))
    trial = spec.trial
    if trial is not None:
        # A checkpoint to start from may already be beyond these few steps.
        resumes = knobs.start is not None and value_of(args, knobs.start) is not None
        own = named_values(args[at:])
        trial = replace(trial, args=args) if resumes else _with_few_steps(trial, args, own, launch.name)
        for knob in trial.knobs:
            look.note(knob.name, knob.value, "--trial")
            args = set_value(args, knob.name, knob.value)
        notes = (*notes, *trial_notes(trial))
    return replace(
        spec,
        entry_args=args,
        trial=trial,
        knobs=knobs,
        batch=batch,
        loader=find_loader(args),
        outputs=tuple(dict.fromkeys((*written, *USUAL_OUTPUTS))),
        output_prefixes=written,
        set_knobs=tuple(set_knobs.items()),
        notes=notes,
        total_steps=spec.total_steps or total_steps(named_values(args[at:]), launch.name),
    )


def _note_origins(look: Resolver, knobs: Knobs) -> None:
    """Record in the settings which knobs are used and whether the user named them."""
    origin = "declared" if knobs.declared else "found on the command line"
    used = {"batch": knobs.batch, "accumulation": knobs.accumulation, "global batch": knobs.global_batch}
    for label, name in {**used, "resume": knobs.start}.items():
        if name is not None:
            look.note(f"knob.{label}", name, origin)


def _rank_batch(knobs: Knobs, wanted: int) -> str:
    """Return the name of the setting for a rank's batch. Raises JobError if it is unknown."""
    if knobs.batch is None:
        raise JobError(f"--micro-batch {wanted} cannot be set: {kn.why_not_changeable(knobs)}")
    if knobs.batch_scope is not KnobScope.PER_RANK:
        unsaid = f"what {knobs.batch} counts is not known: say --batch-scope per_rank"
        raise JobError(f"--micro-batch {wanted} cannot be set: {unsaid}")
    return knobs.batch


def _require_one_rank(spec: JobSpec, launch: Launch, flag: str) -> None:
    """Refuse a command or script that would start several ranks, because stoker controls only its own torchrun."""
    for setting in settings_of(spec.entry_args):
        if _is_of_ranks(setting) and (as_number(setting.value) or 1) > 1:
            raise JobError(f"{flag} wants one rank, and {setting.name} says {setting.value}: say 1")
    if spec.entry_kind is EntryKind.COMMAND and launch.several:
        what = f"the command after `--` {launch.several}: make it start one, by its own flags"
        raise JobError(f"{flag} wants one rank, and {what}")


def _world(spec: JobSpec, look: Resolver, world: int | None, launch: Launch, gpus: int) -> int | None:
    """Return the number of ranks in the job, if known. A declared 1 is trusted unless the launcher contradicts it."""
    declared = launch.ranks in {None, 1} and look.is_given("run.nproc_per_node")
    if spec.entry_kind is not EntryKind.COMMAND or declared:
        return world
    if spec.nproc_per_node == 1 and not is_plain_python(spec):
        return launch.ranks
    # A directly started script may start one rank per GPU, or use several GPUs from one process.
    own = any(_is_of_ranks(s) and s.value not in {"1", "0"} for s in settings_of(spec.entry_args))
    return None if world == 1 and (gpus > 1 or own) else world


def _declared_values(
    given: Knobs, env: Mapping[str, str], read: Callable[[str], str | None]
) -> dict[str, Scalar]:
    """Return the values of declared names that refer to variables or file keys, where they can be read."""
    found: dict[str, Scalar] = {}
    for name in (given.batch, given.accumulation, given.global_batch):
        if name is None or is_argument(name):
            continue
        file, _, key = name.partition("#")
        if place_of(name) is Place.FILE:
            text = read(config_file(file))
            found[name] = read_values(config_file(file), text).get(key) if text is not None else None
        else:
            found[name] = env.get(bare(name))
    return found


def _batch(
    spec: JobSpec,
    knobs: Knobs,
    world: int | None,
    counted: Callable[..., BatchSpec | None],
    *,
    spelt_out: bool,
    may_shrink: bool,
) -> tuple[BatchSpec | None, Knobs, tuple[str, ...]]:
    """Work out the batch, if possible. If the numbers conflict, add a note, or raise JobError if the user gave them.

    If the user named the batch or lets it shrink (`may_shrink`), no accumulation setting means no accumulation.
    """
    batch: BatchSpec | None = None
    if knobs.refusal and knobs.accumulation is None and not may_shrink:
        return None, knobs, spec.notes  # the script may accumulate by default
    if world is not None or knobs.can_change_batch or knobs.batch_scope is KnobScope.PER_RANK:
        try:
            batch = counted(knobs, world_size=world, local_world_size=spec.nproc_per_node)
        except JobError as error:
            if spelt_out:
                raise
            note = f"batch not understood, so never changed by itself: {error.message}"
            knobs = _without_smaller_global(knobs, "")
            return None, replace(knobs, refusal=knobs.refusal or error.message), (*spec.notes, note)
    divided = knobs.paired and knobs.batch_scope in {KnobScope.GLOBAL, KnobScope.PER_NODE}
    if batch is None and not knobs.refusal and divided:
        why = f"{knobs.batch} is divided among the ranks, and how many there are is not known"
        knobs = replace(knobs, refusal=why, help="--nproc-per-node N")
    if batch is None and world is None and knobs.batch_scope is not KnobScope.UNKNOWN:
        knobs = _without_smaller_global(knobs, f"--nproc-per-node N with {SMALLER_GLOBAL}")
    return batch, knobs, spec.notes


def _without_smaller_global(knobs: Knobs, instead: str) -> Knobs:
    """Replace the flag that a refusal suggests with the remedy `instead`, because the flag would not help here."""
    if not knobs.help.startswith(SMALLER_GLOBAL):
        return knobs
    why = knobs.refusal.replace(f" ({knobs.help})", f" ({instead})" if instead else "")
    return replace(knobs, refusal=why, help=instead)


def _set_knob(args: tuple[str, ...], others: dict[str, str], name: str, value: str) -> tuple[str, ...]:
    """Set a knob for the first and all later launches and return the arguments. A non-argument knob goes to `others`."""
    if is_argument(name):
        return set_value(args, name, value)
    others[name] = value
    return args


def _declared_knobs(look: Resolver) -> tuple[Knobs, BatchUnit | None, int]:
    resume = look.get("resume.knob")
    value = look.get("resume.value")
    if resume is not None and value is None:
        # `--resume-knob --resume=latest` gives flag and value together. Without a value, it is a switch.
        resume, _, value = resume.partition("=")
    scope, counts = look.get("batch.scope"), look.get("batch.accumulation_counts")
    declared = Knobs(
        batch=look.get("batch.knob"),
        batch_scope=KnobScope(scope) if scope else KnobScope.UNKNOWN,
        accumulation=look.get("batch.accumulation_knob"),
        global_batch=look.get("batch.global_knob"),
        resume=resume,
        resume_value=value if value is not None else "auto",
        counts=AccumulationCounts(counts) if counts else AccumulationCounts.PER_RANK,
        self_resuming=bool(look.get("resume.self_resuming")),
    )
    for given in (declared.batch, declared.accumulation, resume):
        if given in {"NAME", "FLAG"}:  # pasted from a suggestion
            raise JobError(f"{given}: write the script's own option in its place, such as --batch_size")
    unit = look.get("batch.unit")
    tokens = look.get("batch.tokens_per_sample")
    if unit == "tokens" and tokens is None:
        raise JobError("batch.unit = tokens needs batch.tokens_per_sample")
    return declared, BatchUnit(unit) if unit else None, tokens or 1


def _launch(spec: JobSpec) -> tuple[Launch, int]:
    """Return the job's program and the index in `entry_args` where the script's own arguments start."""
    match spec.entry_kind:
        case EntryKind.SCRIPT:
            return Launch(script=spec.entry), 0
        case EntryKind.MODULE:
            return Launch(module=spec.entry), 0
        case EntryKind.COMMAND | EntryKind.TRAINER:
            words = (spec.entry, *spec.entry_args)
            launch = read_launch(words)
            return launch, max(launch.args_at - 1, 0)


_OWN_RANKS: Final = re.compile(
    r"^[-+]{0,2}(trainer\.)?(devices|gpus|ngpus?|num_gpus|num_devices|nproc|multiprocessing_distributed|world_size|nprocs)$"
)
"""Settings with which a script itself claims devices or starts ranks. Lightning refuses to use more than torchrun started."""


def _is_of_ranks(setting: Argument) -> bool:
    return _OWN_RANKS.match(setting.name.replace("-", "_").replace("__", "--", 1)) is not None


def is_plain_python(spec: JobSpec) -> bool:
    """Check whether a command runs a Python script directly, making its process the job's only rank."""
    is_python = re.fullmatch(r"python[\d.]*", posixpath.basename(spec.entry)) is not None
    return spec.entry_kind is EntryKind.COMMAND and is_python and "-m" not in spec.entry_args[:2]


# Not `num_steps`, `steps`, `total_steps`, which may be the steps of a sampler, a schedule, or one epoch.
STEP_NAMES: Final = frozenset(
    ("max_steps", "max_train_steps", "max_training_steps", "max_iters", "max_iterations", "max_update", "max_updates",
     "train_iters", "num_train_steps", "num_train_iters", "num_training_steps", "num_iterations", "total_train_steps")
)  # fmt: skip
# Words in a name whose steps are not training steps: ``eval.validation.max_steps``.
_OF_OTHERS: Final = frozenset(
    ("eval", "evaluation", "val", "valid", "validation", "test", "dev", "sample", "sampling", "sampler", "generate",
     "generation", "infer", "inference", "scheduler", "warmup", "pretrain", "finetune", "profile", "profiler")
)  # fmt: skip


def named_values(args: Sequence[str]) -> list[tuple[str, str]]:
    """Return the settings on a command line that have a value."""
    return [(setting.name, setting.value) for setting in settings_of(args) if setting.value is not None]


def _with_few_steps(
    trial: TrialSettings, args: tuple[str, ...], own: Sequence[tuple[str, str]], program: str | None
) -> TrialSettings:
    """Limit the script's own step setting to the trial's steps, if one is known, so the script stops by itself."""
    trial = replace(trial, args=args)
    found = _steps(own, program)
    if found is None:
        return trial
    name, value = found
    number = as_number(value)
    if number is not None and number <= trial.steps:
        return replace(trial, ends_itself=True)
    if number is None and value not in {None, "-1"}:  # -1: no limit
        return trial
    return replace(trial, ends_itself=True, knobs=(TrialKnob(name, str(trial.steps), value),))


def total_steps(settings: Sequence[tuple[str, str]], program: str | None = None) -> int | None:
    """Return the total number of training steps, or None unless exactly one setting specifies it."""
    found = _steps(settings, program)
    return as_number(found[1]) if found is not None else None


def trial_notes(trial: TrialSettings | None) -> tuple[str, ...]:
    """Describe for the user what the trial changes and how it stops."""
    if trial is None:
        return ()
    changed = [
        f"trial: {knob.name} is {knob.value or 'empty'}, not {knob.before or 'as the script has it'}"
        for knob in trial.knobs
    ]
    if trial.ends_itself:
        return tuple(changed)
    return (*changed, f"trial: no setting for the steps is known: stopped once {trial.steps} steps are seen")


def _steps(settings: Sequence[tuple[str, str]], program: str | None) -> tuple[str, str | None] | None:
    """Return the setting that limits training steps: the framework's (value None if not given) or the only clearly named one."""
    row = find_convention([name for name, _ in settings], program)
    named = STEP_NAMES if row is None or row.steps is None else frozenset((last_part(row.steps),))
    found = {
        plain(name): (name, value)
        for name, value in settings
        if last_part(name) in named and _OF_OTHERS.isdisjoint(re.split(r"[._:@]", plain(name)))
    }
    if len(found) == 1:
        return next(iter(found.values()))
    return (row.steps, None) if row is not None and row.steps is not None else None
