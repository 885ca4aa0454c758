"""Conventions recognizable from a command line: frameworks, data loaders, process group timeouts.

A framework's row applies if the program or the given setting names belong to that framework. A declaration by
the user overrides a row, and a measurement that contradicts them overrides both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from supervisor.job.arguments.command_line import settings_of, value_of
from supervisor.job.knobs.setting_names import words_of
from supervisor.job.spec import LoaderKnobs


@dataclass(frozen=True, slots=True)
class Convention:
    """The conventions of one framework.

    Attributes:
        name: the name shown to the user.
        programs: its console programs and modules (prefixes if they end in a dot).
        given: regular expressions, each of which must match a setting on the command line.
        accumulation: the framework's own setting. When it is used, a plain batch size is never split into pieces.
        resume_flag: the flag that takes a checkpoint.
        resume_word: a word that the command line must contain for the script to accept `resume_flag`.
        steps: the setting for the number of optimizer steps.
        unsafe: settings under which a different micro-batch would change the training, each with the reason.
    """

    name: str
    programs: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    accumulation: str = ""
    resume_flag: str | None = None
    resume_word: str = ""
    steps: str | None = None
    unsafe: tuple[tuple[str, str], ...] = ()


MEGATRON: Final = "Megatron"
CONVENTIONS: Final[tuple[Convention, ...]] = (
    Convention(
        "LightningCLI",
        given=(r"^--trainer\.(accumulate_grad_batches|max_steps|max_epochs|devices|accelerator|strategy)$",),
        accumulation="accumulate_grad_batches",
        resume_flag="--ckpt_path",
        resume_word="fit",
        steps="--trainer.max_steps",
    ),
    Convention(
        "mmengine",
        given=(r"^optim_wrapper\.accumulative_counts$",),
        accumulation="accumulative_counts",
        unsafe=(("auto_scale_lr", "--auto-scale-lr scales the learning rate by the micro-batch alone"),),
    ),
    Convention(
        MEGATRON,
        given=(r"^--micro-batch-size$", r"^--(global-batch-size|train-iters|train-samples)$"),
        resume_flag="--load",
        steps="--train-iters",
    ),
    Convention(
        "Hugging Face TrainingArguments",
        programs=("llamafactory-cli", "llamafactory.", "trl", "swift"),
        steps="--max_steps",
        resume_flag="--resume_from_checkpoint",
        unsafe=(
            ("generation_batch_size", "generation_batch_size is set beside it"),
            ("steps_per_generation", "steps_per_generation is set beside it"),
        ),
    ),
)


def find_convention(names: Sequence[str], program: str | None) -> Convention | None:
    """Return the first convention that applies, or None.

    Args:
        names: the names of the settings on the command line.
        program: the console program or module, if any.
    """
    for row in CONVENTIONS:
        if program and any(program == p or (p.endswith(".") and program.startswith(p)) for p in row.programs):
            return row
        if row.given and all(any(re.search(each, name) for name in names) for each in row.given):
            return row
    return None


def find_loader(args: Sequence[str]) -> LoaderKnobs:
    """Return the command-line setting for the number of DataLoader workers, which use up host memory."""
    for setting in settings_of(args):
        text = value_of(args, setting.name) or ""
        if words_of(setting.name)[-1:] == ("workers",) and text.isascii() and text.isdigit():
            return LoaderKnobs((setting.name, int(text)))
    return LoaderKnobs()


NCCL_DEFAULT_TIMEOUT_S: Final = 600.0
"""NCCL's default timeout (torch/distributed/constants.py, 2.2+). gloo's is 1800 s. Shorter timeouts make no difference."""


def longer_than_usual(seconds: object) -> float | None:
    """Return `seconds` as a float if it is a number above PyTorch's default timeout, or None otherwise."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | str):
        return None
    try:
        number = float(seconds)
    except (ValueError, OverflowError):
        return None
    return number if NCCL_DEFAULT_TIMEOUT_S < number < 1e15 else None
