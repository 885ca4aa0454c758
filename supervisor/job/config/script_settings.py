"""Finds a script's batch and resume settings: the declared ones, otherwise those on the command line with conventional names.

No source, shell script or config file is read, except for a key that a person declared (``FILE#key``). Anything still unknown is
measured once the script runs (`measured`), and asked if measuring does not settle it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from supervisor.job.arguments.command_line import (
    ACCELERATE,
    Launch,
    names_machines,
    read_launch,
    set_value,
    settings_of,
    value_of,
    with_one_rank,
)
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
    Places,
    Scalar,
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
    """`spec` with the script's settings and batch, and ``--micro-batch`` and ``--global-batch`` applied.

    Args:
        spec: the job so far.
        look: the settings.
        world: ranks in all, if known.
        read: opens a file by the name that the command line uses: for files with a declared key.
        gpus: the number of GPUs visible to the job.
        alone: the flag that requests one rank; empty without one.

    Raises:
        JobError: a requested batch cannot be set or does not divide; a command starts several ranks although
            one was requested.
    """
    opened = read or (lambda _: None)
    declared, unit, tokens = _declared_knobs(look)
    wanted, total = look.get("batch.micro"), look.get("batch.global")
    as_given = spec.entry_args
    if alone:
        spec = _with_one_rank(spec, alone)
    launch, at = _launch(spec)
    world = _world(spec, look, world, launch, gpus)
    program = launch.name
    env = {**look.env, **dict(spec.env)}
    where = Places(_declared_files(declared, opened), env, program, at)
    knobs = find_knobs(spec.entry_args, declared, elsewhere=where, world=world)
    spec = replace(spec, world_size=world)
    if spec.entry_kind is EntryKind.COMMAND and knobs.batch_scope is KnobScope.PER_NODE:
        world = None  # the layout of its ranks on nodes is up to the command
    args = spec.entry_args
    set_knobs: dict[str, str] = {}
    if wanted is not None:
        args, where = _set_knob(args, where, set_knobs, _rank_batch(knobs, wanted), str(wanted))
    if world == 1 and knobs.help == SMALLER_GLOBAL and knobs.batch_scope is KnobScope.UNKNOWN:
        knobs = replace(knobs, batch_scope=KnobScope.PER_RANK)  # which is also that of all ranks
    counted = partial(
        kn.batch_of, args, elsewhere=where, unit=unit, tokens_per_sample=tokens, global_batch=total
    )
    given = declared or Knobs()
    # A batch that a person spelled out must divide; a batch that was merely found is up to the script.
    spelt_out = {given.batch, wanted, total} != {None}
    may_shrink = spec.retry.allow_smaller_global or _names_batch(given)
    batch, knobs, notes = _batch(spec, knobs, world, counted, spelt_out=spelt_out, may_shrink=may_shrink)
    if total is not None:
        if batch is None:
            raise JobError(f"--global-batch {total} cannot be set: {kn.why_not_changeable(knobs)}")
        for name, value in kn.batch_values(knobs, batch, local_world_size=spec.nproc_per_node):
            args, where = _set_knob(args, where, set_knobs, name, value)
    _note_origins(look, knobs)
    written = find_outputs(settings_of(args))
    trial = spec.trial
    if trial is not None:
        resumes = knobs.start is not None and value_of(args, knobs.start) is not None
        trial = plan_trial(trial, args, where, batch, resumes=resumes)
        for knob in trial.knobs:
            look.note(knob.name, knob.value, "--trial")
            args, where = _set_knob(args, where, set_knobs, knob.name, knob.value)
        trial, notes = replace(trial, args=as_given), (*notes, *trial_notes(trial))
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
        total_steps=spec.total_steps
        or total_steps(((s.name, s.value) for s in settings_of(args[where.args_at :])), where.program),
    )


def _names_batch(given: Knobs) -> bool:
    """Whether a person named the batch's setting, or its scope."""
    return given.batch is not None or given.batch_scope is not KnobScope.UNKNOWN


def _rank_batch(knobs: Knobs, wanted: int) -> str:
    """The setting of a rank's batch; raises JobError if it is unknown."""
    if knobs.batch is None:
        raise JobError(f"--micro-batch {wanted} cannot be set: {kn.why_not_changeable(knobs)}")
    if knobs.batch_scope is not KnobScope.PER_RANK:
        unsaid = f"what {knobs.batch} counts is not known: say --batch-scope per_rank"
        raise JobError(f"--micro-batch {wanted} cannot be set: {unsaid}")
    return knobs.batch


def _with_one_rank(spec: JobSpec, flag: str) -> JobSpec:
    """The job with its launcher set to one rank, if that launcher is not our torchrun.

    Raises:
        JobError: it starts several, and no way to start one is certain.
    """
    for setting in settings_of(spec.entry_args):
        if _is_of_ranks(setting) and (as_number(setting.value) or 1) > 1:
            raise JobError(f"{flag} wants one rank, and {setting.name} says {setting.value}: say 1")
    if spec.entry_kind is not EntryKind.COMMAND:
        return spec
    launch, _ = _launch(spec)
    # Without a count, accelerate's own configuration file may have one, and srun's tasks may be per node.
    unsaid = launch.ranks is None and not {*ACCELERATE, "srun"}.isdisjoint(launch.launchers)
    if launch.ranks in {None, 1} and not (unsaid or names_machines(launch)):
        return spec
    changed = with_one_rank((spec.entry, *spec.entry_args), launch)
    if changed is None:
        many = "names machines" if names_machines(launch) else f"starts {launch.ranks or 'several, perhaps'}"
        raise JobError(
            f"{flag} wants one rank, and the command after `--` {many}: make it start one, by its own flags"
        )
    known = f", not {launch.ranks}" if launch.ranks is not None else ""
    note = f"{flag}: {launch.launchers[0]} starts 1 rank{known}"
    return replace(spec, entry_args=changed[1:], notes=(*spec.notes, note))


def _world(spec: JobSpec, look: Resolver, world: int | None, launch: Launch, gpus: int) -> int | None:
    """The job's number of ranks, if known: one is also declared, unless the command's launcher contradicts."""
    declared = launch.ranks in {None, 1} and any(
        key == "run.nproc_per_node" and origin != "default" for key, _, origin in look.origins
    )
    if spec.entry_kind is not EntryKind.COMMAND or declared:
        return world
    if spec.nproc_per_node == 1 and not is_plain_python(spec):
        return launch.ranks
    # A directly run script may start a rank per GPU, or use several GPUs from one process.
    return None if world == 1 and (gpus > 1 or _starts_own_ranks(spec.entry_args)) else world


def _declared_files(
    declared: Knobs | None, read: Callable[[str], str | None]
) -> dict[str, Mapping[str, Scalar]]:
    """The files in declared names, each by its place in such a name."""
    given = declared or Knobs()
    named = (given.batch, given.accumulation, given.global_batch)
    files = {name.partition("#")[0] for name in named if name is not None and place_of(name) is Place.FILE}
    texts = {file: read(config_file(file)) for file in files}
    return {file: read_values(config_file(file), text) for file, text in texts.items() if text is not None}


def _batch(
    spec: JobSpec,
    knobs: Knobs,
    world: int | None,
    counted: Callable[..., BatchSpec | None],
    *,
    spelt_out: bool,
    may_shrink: bool,
) -> tuple[BatchSpec | None, Knobs, tuple[str, ...]]:
    """The batch's numbers, if known; contradictions are noted, or raised if a person spelled the numbers out.

    `may_shrink`: a person named the batch or lets it shrink, so that without an accumulation there is none.
    """
    batch: BatchSpec | None = None
    if knobs.refusal and knobs.accumulation is None and not may_shrink:
        return None, knobs, spec.notes  # the script's default may accumulate
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
    """A refusal without the flag that would not help here, and with the remedy `instead`."""
    if not knobs.help.startswith(SMALLER_GLOBAL):
        return knobs
    why = knobs.refusal.replace(f" ({knobs.help})", f" ({instead})" if instead else "")
    return replace(knobs, refusal=why, help=instead)


def _note_origins(look: Resolver, knobs: Knobs) -> None:
    """Record in the settings which knobs are used, and whether a person named them."""
    origin = "declared" if knobs.declared else "found on the command line"
    named = {
        "batch": knobs.batch,
        "accumulation": knobs.accumulation,
        "global batch": knobs.global_batch,
        "resume": knobs.start,
    }
    for label, knob in named.items():
        if knob is not None:
            look.note(f"knob.{label}", knob, origin)


def _set_knob(
    args: tuple[str, ...], where: Places, others: dict[str, str], name: str, value: str
) -> tuple[tuple[str, ...], Places]:
    """A knob set from the first launch on; if it is not an argument it goes to `others`."""
    if is_argument(name):
        return set_value(args, name, value), where
    others[name] = value
    return args, where.with_value(name, value)


def _declared_knobs(look: Resolver) -> tuple[Knobs | None, BatchUnit | None, int]:
    resume = look.get("resume.knob")
    value = look.get("resume.value")
    if resume is not None and value is None:
        # `--resume-knob --resume=latest` gives flag and value together; without a value it is a switch.
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
    unit = look.get("batch.unit")
    tokens = look.get("batch.tokens_per_sample")
    if unit == "tokens" and tokens is None:
        raise JobError("batch.unit = tokens needs batch.tokens_per_sample")
    known = None if declared == Knobs() else declared
    return known, BatchUnit(unit) if unit else None, tokens or 1


def _launch(spec: JobSpec) -> tuple[Launch, int]:
    """The job's program, and the index of the script's own arguments within `entry_args`."""
    match spec.entry_kind:
        case EntryKind.SCRIPT:
            return Launch(("torchrun",), None, script=spec.entry), 0
        case EntryKind.MODULE:
            return Launch(("torchrun",), None, module=spec.entry), 0
        case EntryKind.COMMAND | EntryKind.TRAINER:
            words = (spec.entry, *spec.entry_args)
            launch = read_launch(words)
            return launch, max(launch.args_at - 1, 0)


_OWN_RANKS: Final = re.compile(
    r"^[-+]{0,2}(trainer\.)?(devices|gpus|ngpus?|num_gpus|num_devices|nproc|multiprocessing_distributed|world_size|nprocs)$"
)
"""Settings by which a script takes devices or starts ranks by itself; Lightning refuses more than torchrun started."""


def _is_of_ranks(setting: Argument) -> bool:
    return _OWN_RANKS.match(setting.name.replace("-", "_").replace("__", "--", 1)) is not None


def _starts_own_ranks(args: Sequence[str]) -> bool:
    """Whether a directly run script's arguments give its number of ranks or GPUs."""
    return any(_is_of_ranks(s) and s.value not in {"1", "0"} for s in settings_of(args))


def is_python(program: str) -> bool:
    """Whether a command is a Python interpreter, by its name."""
    return re.fullmatch(r"python[\d.]*", posixpath.basename(program)) is not None


def is_plain_python(spec: JobSpec) -> bool:
    """Whether a command is a directly run Python script, whose process is the job's only rank."""
    return spec.entry_kind is EntryKind.COMMAND and is_python(spec.entry) and "-m" not in spec.entry_args[:2]


# Not `num_steps`, `steps`, `total_steps`: these may be a sampler's steps, a schedule's, or one epoch's.
STEP_NAMES: Final = frozenset(
    ("max_steps", "max_train_steps", "max_training_steps", "max_iters", "max_iterations", "max_update", "max_updates",
     "train_iters", "num_train_steps", "num_train_iters", "num_training_steps", "num_iterations", "total_train_steps")
)  # fmt: skip
EVAL_BATCHES: Final = frozenset(
    ("limit_val_batches", "limit_test_batches", "eval_iters", "max_eval_batches", "num_eval_batches", "max_val_batches")
)  # fmt: skip
EVAL_SAMPLES: Final = frozenset(("max_eval_samples", "max_val_samples", "max_predict_samples"))
TRAIN_SAMPLES: Final = frozenset(("max_train_samples",))
FEW_SAMPLES: Final = 64
"""Samples of an evaluation in a trial."""
# Words in a name whose steps are not the training's: ``eval.validation.max_steps``.
_OF_OTHERS: Final = frozenset(
    ("eval", "evaluation", "val", "valid", "validation", "test", "dev", "sample", "sampling", "sampler", "generate",
     "generation", "infer", "inference", "scheduler", "warmup", "pretrain", "finetune", "profile", "profiler")
)  # fmt: skip


class _Found(NamedTuple):
    """A setting to change; `value` None: it is a framework's own and not given."""

    name: str
    value: str | None


def plan_trial(
    trial: TrialSettings,
    args: Sequence[str],
    where: Places,
    batch: BatchSpec | None,
    *,
    resumes: bool = False,
) -> TrialSettings:
    """`trial` with the settings to change, and whether the script then ends on its own.

    Args:
        trial: the requested trial.
        args: the words after the script, or after the program of a command.
        where: the index of the script's own arguments, and the program.
        batch: the batch of the trial's one rank, if it is known.
        resumes: it is set to start from a checkpoint, which may already be beyond a small total, so no total is set.
    """
    found = [_Found(s.name, s.value) for s in settings_of(args[where.args_at :]) if s.value is not None]
    steps = None if resumes else _steps(found, where.program)
    knobs: list[TrialKnob] = []
    ends = False
    if steps is not None:
        number = as_number(steps.value)
        if number is not None and number <= trial.steps:
            ends = True
        elif (knob := _changed(steps, trial.steps)) is not None:
            ends = True
            knobs.append(knob)
    samples = batch is not None and batch.unit is BatchUnit.SAMPLES
    wanted = {
        EVAL_BATCHES: trial.steps,
        EVAL_SAMPLES: FEW_SAMPLES,
        TRAIN_SAMPLES: trial.steps * batch.global_batch if batch is not None and samples else None,
    }
    for names, most in wanted.items():
        for name in sorted(names):
            one = _only(found, frozenset((name,)))
            if one is not None and most is not None and not _is_few(one.value, most):
                knob = _changed(one, most)
                knobs += [knob] if knob is not None else []
    return replace(trial, ends_itself=ends, knobs=tuple(knobs))


def total_steps(settings: Iterable[tuple[str, str | None]], program: str | None = None) -> int | None:
    """The total number of training steps from the settings; None unless one setting is known to mean that."""
    steps = _steps([_Found(name, value) for name, value in settings if value is not None], program)
    return as_number(steps.value) if steps is not None else None


def trial_notes(trial: TrialSettings | None) -> tuple[str, ...]:
    """What the trial changes, and how it ends, for people."""
    if trial is None:
        return ()
    changed = [
        f"trial: {knob.name} is {knob.value or 'empty'}, not {knob.before or 'as the script has it'}"
        for knob in trial.knobs
    ]
    if trial.ends_itself:
        return tuple(changed)
    return (*changed, f"trial: no setting for the steps is known: stopped once {trial.steps} steps are seen")


def _only(found: Sequence[_Found], names: frozenset[str]) -> _Found | None:
    """The only setting with one of these names; None if there are several, such as a model's and an evaluation's."""
    near = {plain(one.name): one for one in found if last_part(one.name) in names}
    return next(iter(near.values())) if len(near) == 1 else None


def _steps(found: Sequence[_Found], program: str | None) -> _Found | None:
    """The setting that ends the training: the framework's own if one applies, else the one with a clear name."""
    mine = [one for one in found if not _OF_OTHERS.intersection(re.split(r"[._:@]", plain(one.name)))]
    row = find_convention([one.name for one in found], program)
    if row is None or row.steps is None:
        return _only(mine, STEP_NAMES)
    return _only(mine, frozenset((last_part(row.steps),))) or _Found(row.steps, None)


def _changed(one: _Found, value: int) -> TrialKnob | None:
    """The setting with a number; None if its value is not a number."""
    if one.value is not None and not _is_number(one.value):
        return None
    return TrialKnob(one.name, str(value), one.value)


def _is_few(value: str | None, most: int) -> bool:
    """Whether a number of batches or samples is already small; a fraction, like Lightning's 1.0, is a share."""
    number = as_number(value)
    return number is not None and number <= most and "." not in str(value)


def _is_number(text: str) -> bool:
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True
