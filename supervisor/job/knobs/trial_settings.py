"""What a trial changes of a foreign script's settings: its steps, and how much data it takes.

Only where a setting is known for certain: it is on the command line, in a config or declared by the source, under a name that
means one thing, and one of its kind is there. All else is left as it is; the keeper ends the trial once its steps are seen.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.job.config.edit import Scalar
from supervisor.job.knobs.batch_settings.candidates import as_number, plain_name
from supervisor.job.knobs.batch_settings.find import convention_of
from supervisor.job.knobs.conventions import HF
from supervisor.job.knobs.places import Place, Places, place_of
from supervisor.job.knobs.source.read_source import ScriptSource
from supervisor.job.spec import TrialKnob, TrialSettings

# Not `num_steps`, `steps`, `total_steps`: also of a sampler's steps, of a schedule alone, of one epoch.
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
# Words of a name whose steps are not the training's: ``eval.validation.max_steps``.
_OF_OTHERS: Final = frozenset(
    ("eval", "evaluation", "val", "valid", "validation", "test", "dev", "sample", "sampling", "sampler", "generate",
     "generation", "infer", "inference", "scheduler", "warmup", "pretrain", "finetune", "profile", "profiler")
)  # fmt: skip
# HfArgumentParser refuses a flag of TrainingArguments where it parses none.
_HF_ARGUMENTS: Final = ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")


@dataclass(frozen=True, slots=True)
class _Found:
    """A setting as it stands: the name to set it under, what it holds, how near to the person it was said (2: command line)."""

    name: str
    value: Scalar
    nearness: int


def plan_trial(
    trial: TrialSettings,
    args: Sequence[str],
    where: Places,
    batch: BatchSpec | None,
    *,
    resumes: bool = False,
) -> TrialSettings:
    """`trial` with the settings that are to be changed, and whether the script then ends by itself.

    Args:
        trial: what is asked for.
        args: what follows the script, or the whole command line behind the program.
        where: configs, source and environment.
        batch: the batch of the trial's one rank, if it is known.
        resumes: it is told to begin at a checkpoint: few steps in all may be behind it by then, so they are not set.
    """
    found = list(_settings(args, where))
    steps = None if resumes else _steps(found, args, where)
    knobs: list[TrialKnob] = []
    ends = False
    if steps is not None:
        number = as_number(steps.value)
        if number is not None and number <= trial.steps:
            # So few by default are steps of something else, as GRPO's num_iterations.
            ends = steps.nearness > 0
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


def configured_steps(args: Sequence[str], where: Places) -> int | None:
    """How many steps the training makes in all, by the command line or a config; None where no one setting is known to mean that."""
    found = _steps(list(_settings(args, where)), args, where)
    return as_number(found.value) if found is not None and found.nearness > 0 else None


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


def _settings(args: Sequence[str], where: Places) -> Iterator[_Found]:
    """Every setting that can be set from outside, the nearest to the person first."""
    own = args[where.args_at :]
    if where.lone_config is None:
        for setting in settings_of(own):
            if setting.value is not None and not _is_overwritten(where.source, plain_name(setting.name)):
                yield _Found(setting.name, setting.value, 2)
    for file, values in where.configs.items():
        if file not in where.fixed and file not in where.roles:
            for key, value in values.items():
                yield _Found(f"{file}#{key}", value, 1)
    if where.lone_config is not None:
        return
    for name, (value, _) in where.settled.items():
        if name not in where.written:
            yield _Found(name, value, 1)
    for flag in where.source.flags:
        is_number = not flag.is_switch and flag.type not in {"str", "bool"}
        if is_number and where.source.uses(flag.dest) and not _is_overwritten(where.source, flag.dest):
            yield _Found(max(flag.names, key=len), flag.default, 0)


def _is_overwritten(source: ScriptSource, dest: str) -> bool:
    """Whether the script computes the setting again, whatever was given: ``args.num_iterations = total // batch``, under no condition."""
    if plain_name(dest) not in STEP_NAMES:
        return False
    open_: list[ast.AST] = [file.tree for file in source.files]
    while open_:
        node = open_.pop()
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=attr)], value=value) if attr == dest:
                own = any(isinstance(n, ast.Attribute) and n.attr == dest for n in ast.walk(value))
                if not own and not any(isinstance(n, ast.IfExp) for n in ast.walk(value)):
                    return True
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                open_ += node.body
            case ast.If() | ast.expr():
                pass
            case _:
                open_ += ast.iter_child_nodes(node)
    return False


def _only(found: Sequence[_Found], names: frozenset[str]) -> _Found | None:
    """The one setting of these names; None where there are several of equal rank, as a model's and an evaluation's."""
    matching = [one for one in found if plain_name(one.name).rpartition(".")[2] in names]
    nearest = max((one.nearness for one in matching), default=0)
    near = {plain_name(one.name): one for one in matching if one.nearness == nearest}
    return next(iter(near.values())) if len(near) == 1 else None


def _steps(found: Sequence[_Found], args: Sequence[str], where: Places) -> _Found | None:
    """The setting that ends the training: the framework's own where one's conventions hold, else the one of a telling name."""
    mine = [one for one in found if not _OF_OTHERS.intersection(re.split(r"[._:@]", plain_name(one.name)))]
    row = convention_of(args, where)
    own = row.steps if row is not None else None
    if row is None or own is None:
        return _only(mine, STEP_NAMES)
    if (named := _only(mine, frozenset((plain_name(own).rpartition(".")[2],)))) is not None:
        return named
    takes = any(name.endswith(_HF_ARGUMENTS) for name in where.source.used)
    if where.lone_config is not None or (row.name == HF and where.source.files and not takes):
        return None
    return _Found(own, None, 0)


def _changed(one: _Found, value: int) -> TrialKnob | None:
    """The setting with a number; None where it holds something else than a number."""
    before = one.value
    if isinstance(before, bool) or (isinstance(before, str) and not _is_number(before)):
        return None
    if place_of(one.name) is Place.FILE and before is None:
        return None
    return TrialKnob(one.name, str(value), None if before is None else str(before))


def _is_few(value: Scalar, most: int) -> bool:
    """Whether a number of batches or samples is small as it is; a fraction, as Lightning's 1.0, is of all."""
    number = as_number(value)
    return number is not None and number <= most and not isinstance(value, float) and "." not in str(value)


def _is_number(text: str) -> bool:
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True
