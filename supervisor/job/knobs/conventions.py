"""The conventions of frameworks, as a table: how each is recognised, which setting pairs with the micro-batch, and how it resumes.

A row applies only where its evidence is seen in the command line, the script's imports or its calls. What the script or a
config says outright comes before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Convention:
    """One framework.

    Attributes:
        name: for people.
        programs: console programs and modules (by prefix) that are it.
        modules: packages whose import is evidence.
        words: names that are called in the source.
        given: a regular expression; a setting on the command line or in a config that matches is evidence.
        needs: a setting (by pattern) must also be there, where importing alone says too little.
        micro: settings that hold the micro-batch, where its name does not say so; by plain key.
        micro_default: the setting and its value where nothing is a batch, if the framework has one.
        micro_classes: of these classes the source must hand one to a parser for that, itself or a class derived from it.
        accumulation: the paired setting, as it is appended where nobody names it.
        accumulation_default: its value where none is given.
        beside: where the micro-batch is in a config, the paired setting stands beside it; else it is a flag.
        derived: the accumulation follows from the total, so the micro-batch changes alone; a total must be given.
        resume_flag: takes a checkpoint, where no source line declares it.
        resume_value: what it is set to; empty: a path that must be found.
        resume_needs: a word of the command line, or a key of its configs, without which the flag is unknown to the script.
        self_resume: switches that make the script resume by itself when present and on.
        always_resumes: resumes by itself unless one of `resume_off` is given.
        resume_off: settings that keep it from doing so.
        resume_word: a keyword that some call of the source must have for that.
        selector: a setting whose value says which one holds the micro-batch: (its name, (value, name of the micro-batch)).
        steps: the setting that ends the training after so many optimizer steps, as it is appended where nobody names it.
        only: packages, one of which the source must import where it could be read: names alone are evidence only where it could not.
        unsafe: settings that make a change of the micro-batch change the training, with the reason.
    """

    name: str
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    given: str = ""
    needs: str = ""
    micro: tuple[str, ...] = ()
    micro_default: tuple[str, int] | None = None
    micro_classes: tuple[str, ...] = ()
    accumulation: str | None = None
    accumulation_default: int = 1
    beside: bool = False
    derived: bool = False
    resume_flag: str | None = None
    resume_value: str = ""
    resume_needs: str = ""
    self_resume: tuple[str, ...] = ()
    always_resumes: bool = False
    resume_off: tuple[str, ...] = ()
    resume_word: str = ""
    unsafe: tuple[tuple[str, str], ...] = ()
    steps: str | None = None
    selector: tuple[str, tuple[tuple[str, str], ...]] | None = None
    only: tuple[str, ...] = ()


HF: Final = "Hugging Face TrainingArguments"
CONVENTIONS: Final[tuple[Convention, ...]] = (
    Convention(
        "LightningCLI",
        words=("LightningCLI",),
        only=("lightning", "pytorch_lightning"),
        given=r"--trainer\.",
        needs=r"--(trainer|data|model)\.|#(trainer|data|model)\.|--config",
        accumulation="--trainer.accumulate_grad_batches",
        resume_flag="--ckpt_path",
        resume_needs="fit",
        steps="--trainer.max_steps",
    ),
    Convention(
        "Lightning's Trainer by Hydra",
        modules=("lightning", "pytorch_lightning"),
        given=r"^trainer\._target_$",
        needs=r"^trainer\._target_$",
        only=("lightning", "pytorch_lightning"),
        # With two plus signs Hydra sets a key that its config has, and adds one that it has not.
        accumulation="++trainer.accumulate_grad_batches",
        steps="++trainer.max_steps",
        resume_flag="ckpt_path",
        resume_needs="ckpt_path",
    ),
    Convention(
        "Lightning's Trainer.add_argparse_args",
        words=("add_argparse_args", "from_argparse_args"),
        steps="--max_steps",
        accumulation="--accumulate_grad_batches",
        resume_flag="--resume_from_checkpoint",
    ),
    Convention(
        "mmengine",
        modules=("mmengine", "mmcv"),
        given=r"--cfg-options$|^train_dataloader\.",
        needs=r"train_dataloader\.",
        accumulation="optim_wrapper.accumulative_counts",
        unsafe=(("auto_scale_lr", "--auto-scale-lr scales the learning rate by the micro-batch alone"),),
    ),
    Convention(
        "espnet",
        programs=("espnet2.", "espnet3."),
        modules=("espnet2",),
        micro=("batch_bins", "batch_size"),
        selector=(
            "batch_type",
            (
                ("numel", "batch_bins"),
                ("length", "batch_bins"),
                ("unsorted", "batch_size"),
                ("sorted", "batch_size"),
                ("folded", "batch_size"),
            ),
        ),
        accumulation="--accum_grad",
        resume_flag="--resume",
        resume_value="true",
        self_resume=("resume",),
    ),
    Convention(
        "fairseq",
        programs=("fairseq-train", "fairseq_cli.", "unicore-train"),
        modules=("fairseq", "fairseq_cli"),
        needs=r"--(max-tokens|max-sentences|batch-size|update-freq)$|--max_tokens$",
        micro=("max_tokens", "max_sentences"),
        accumulation="--update-freq",
        steps="--max-update",
        always_resumes=True,
        resume_off=(
            "restore_file",
            "reset_optimizer",
            "reset_dataloader",
            "finetune_from_model",
            "no_save",
            "reset_meters",
        ),
    ),
    Convention(
        "speechbrain",
        modules=("speechbrain",),
        accumulation="--grad_accumulation_factor",
        beside=True,
        always_resumes=True,
        resume_word="checkpointer",
        unsafe=(("dynamic_batching", "batches are dynamic (dynamic_batching)"),),
    ),
    Convention(
        "Megatron",
        modules=("megatron",),
        given=r"--micro-batch-size$",
        needs=r"--micro-batch-size$",
        derived=True,
        resume_flag="--load",
        steps="--train-iters",
    ),
    Convention(
        "torchtitan",
        programs=("torchtitan.",),
        modules=("torchtitan",),
        given=r"training\.local_batch_size",
        derived=True,
    ),
    Convention(
        "torchtune",
        programs=("tune",),
        modules=("torchtune",),
        accumulation="gradient_accumulation_steps",
        beside=True,
    ),
    Convention(
        "axolotl",
        programs=("axolotl", "axolotl."),
        accumulation="gradient_accumulation_steps",
        beside=True,
        resume_flag="resume_from_checkpoint",
    ),
    Convention(
        "coqui trainer", words=("TrainerArgs",), only=("trainer", "TTS"), resume_flag="--continue_path"
    ),
    Convention(
        HF,
        programs=("llamafactory-cli", "llamafactory.", "trl", "swift"),
        words=(
            "HfArgumentParser",
            "TrlParser",
            "H4ArgumentParser",
            "parse_args_into_dataclasses",
            "parse_args_and_config",
        ),
        micro_default=("per_device_train_batch_size", 8),
        micro_classes=("TrainingArguments", "Seq2SeqTrainingArguments"),
        steps="--max_steps",
        accumulation="--gradient_accumulation_steps",
        beside=True,
        resume_flag="--resume_from_checkpoint",
        unsafe=(
            ("generation_batch_size", "generation_batch_size is set beside it"),
            ("steps_per_generation", "steps_per_generation is set beside it"),
        ),
    ),
)


def find_convention(
    names: Sequence[str], *, program: str | None, modules: Collection[str], called: Collection[str]
) -> Convention | None:
    """The first row whose evidence is there.

    Args:
        names: settings on the command line and in configs.
        program: the console program or module that runs.
        modules: packages that the script and its local imports import.
        called: names that the source calls.
    """
    return next((row for row in CONVENTIONS if _applies(row, names, program, modules, called)), None)


def _applies(
    row: Convention,
    names: Sequence[str],
    program: str | None,
    modules: Collection[str],
    called: Collection[str],
) -> bool:
    if row.needs and not any(re.search(row.needs, name) for name in names):
        return False
    # `--trainer.batch_size` is a setting of many a script of its own (minGPT): a source that was read must speak for the framework.
    if row.only and modules and not any(module in modules for module in row.only):
        return False
    if program and any(program == p or (p.endswith(".") and program.startswith(p)) for p in row.programs):
        return True
    if row.given and any(re.search(row.given, name) for name in names):
        return True
    if row.words:
        return any(word in called for word in row.words)
    return any(module in modules for module in row.modules)
