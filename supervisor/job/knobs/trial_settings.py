"""What a trial changes of a foreign script's settings: its steps, and how much data it takes.

Only a setting that is on the command line under a name that means one thing, or the one of the framework whose conventions hold. All
else is left as it is; the keeper ends the trial once its steps are seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.job.knobs.conventions import find_convention
from supervisor.job.knobs.set_batch import as_number
from supervisor.job.knobs.setting_names import Places, last_part, plain
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


class _Found(NamedTuple):
    """A setting to set; `value` None: it is not given, and is the framework's own."""

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
    """`trial` with the settings that are to be changed, and whether the script then ends by itself.

    Args:
        trial: what is asked for.
        args: what follows the script, or the whole command line behind the program.
        where: where the script's own arguments begin, and what runs.
        batch: the batch of the trial's one rank, if it is known.
        resumes: it is told to begin at a checkpoint: few steps in all may be behind it by then, so they are not set.
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
    """How many steps the training makes in all, by its settings; None where no one setting is known to mean that."""
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
    """The one setting of these names; None where there are several, as a model's and an evaluation's."""
    near = {plain(one.name): one for one in found if last_part(one.name) in names}
    return next(iter(near.values())) if len(near) == 1 else None


def _steps(found: Sequence[_Found], program: str | None) -> _Found | None:
    """The setting that ends the training: the framework's own where one's conventions hold, else the one of a telling name."""
    mine = [one for one in found if not _OF_OTHERS.intersection(re.split(r"[._:@]", plain(one.name)))]
    row = find_convention([one.name for one in found], program)
    if row is None or row.steps is None:
        return _only(mine, STEP_NAMES)
    return _only(mine, frozenset((last_part(row.steps),))) or _Found(row.steps, None)


def _changed(one: _Found, value: int) -> TrialKnob | None:
    """The setting with a number; None where it holds something else than a number."""
    if one.value is not None and not _is_number(one.value):
        return None
    return TrialKnob(one.name, str(value), one.value)


def _is_few(value: str | None, most: int) -> bool:
    """Whether a number of batches or samples is small as it is; a fraction, as Lightning's 1.0, is of all."""
    number = as_number(value)
    return number is not None and number <= most and "." not in str(value)


def _is_number(text: str) -> bool:
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True
