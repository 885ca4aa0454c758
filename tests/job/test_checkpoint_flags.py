"""Where a foreign script may start from, as its flags, configs and source tell."""

from __future__ import annotations

import pytest

from supervisor.job.arguments.assignments import settings_of
from supervisor.job.knobs.batch_settings.find import find_knobs, places
from supervisor.job.knobs.resuming.checkpoint_flags import (
    USUAL_OUTPUTS,
    find_outputs,
    find_prefixes,
    given_start,
    perhaps_start,
)

HF = """
from transformers import HfArgumentParser, TrainingArguments
(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
Trainer(args=args).train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
TRL = """
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser
args, model_args = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
SFTTrainer(args=args).train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
OPEN = 'parser.add_argument("--resume_from_checkpoint", type=str, default=None)'


@pytest.mark.parametrize(
    ("source", "args", "path", "resume"),
    [
        (HF, "--output_dir out", "--resume_from_checkpoint", None),
        (TRL, "--output_dir out", "--resume_from_checkpoint", None),
        (OPEN, "", "--resume_from_checkpoint", None),
        ('parser.add_argument("--ckpt_path")\ntrainer.fit(model, ckpt_path=args.ckpt_path)', "", "--ckpt_path", None),
        ('parser.add_argument("--ckpt_path")', "", None, None),
        ('parser.add_argument("--resume-from", default="")', "", "--resume-from", None),
        ('parser.add_argument("--resume", metavar="PATH")', "", "--resume", None),
        ("", "--resume_from_checkpoint old/checkpoint-10", "--resume_from_checkpoint", None),
        # What finds the newest by itself needs no path.
        (OPEN.replace("default=None", 'default="latest"'), "", None, "--resume_from_checkpoint"),
        ('parser.add_argument("--resume", action="store_true")', "", None, "--resume"),
        ("", "--resume auto", None, "--resume"),
        # What is resumed there is no checkpoint.
        ('parser.add_argument("--resume_step", default=None)', "", None, None),
        ('parser.add_argument("--wandb_resume", default=None)', "", None, None),
        ('parser.add_argument("--resume_run_id", default=None)', "", None, None),
        ('parser.add_argument("--load_weights", default=None)', "", None, None),
        # transformers without a script that uses the flag.
        (HF.replace("args.resume_from_checkpoint", "None").replace("resume_from_checkpoint=", ""), "", None, None),
        ("def broken(", "", None, None),
    ],
)  # fmt: skip
def test_a_flag_that_takes_a_path_is_told_from_one_that_does_not(
    source: str, args: str, path: str | None, resume: str | None
) -> None:
    knobs = find_knobs(args.split(), source)
    assert (knobs.resume_path, knobs.resume) == (path, resume)


def test_the_folders_are_those_that_the_script_is_told_then_those_that_frameworks_choose() -> None:
    where = places(
        'parser.add_argument("--save_dir", default="saved")\nparser.add_argument("--output_dir", default="out")',
        {"c.yaml": {"trainer.default_root_dir": "lit", "data.dir": "data"}},
    )
    found = find_outputs(settings_of(["--output-dir", "mine", "--lr", "1"]), where)
    assert found == ("mine", "lit", "saved", *USUAL_OUTPUTS)


@pytest.mark.parametrize(
    ("args", "prefixes"),
    [
        ("--out a", ("a",)),
        ("--save runs/b.pt --results c", ("runs/b.pt", "c")),
        ("--output_dir outputs", ("outputs",)),
        ("--output_dir mine", ()),
        ("--out results.json --save 5 --out_file true", ()),
        ("--lr 1", ()),
    ],
)
def test_what_else_the_arguments_name_as_written_to(args: str, prefixes: tuple[str, ...]) -> None:
    assert find_prefixes(settings_of(args.split()), places("", {})) == prefixes


@pytest.mark.parametrize(
    ("args", "flag", "given"),
    [
        ("--lr 1 --resume c2.pt", "--resume", "--resume c2.pt"),
        ("--resume=c2.pt", None, "--resume c2.pt"),
        ("--resume c1.pt --resume c2.pt", None, "--resume c2.pt"),
        ("--weights c2.pt", "--weights", "--weights c2.pt"),
        ("train.resume=c2.pt", None, "train.resume=c2.pt"),
        ("--weights c2.pt", None, None),
        ("--resume", "--resume", None),
        ("--resume false", "--resume", None),
        ("", "--resume", None),
    ],
)
def test_a_start_that_the_arguments_give_is_known(args: str, flag: str | None, given: str | None) -> None:
    assert given_start(args.split(), {flag} if flag else ()) == given


@pytest.mark.parametrize(
    ("args", "flag"),
    [
        ("--lr 1", None),
        ("--lr 2 --load runs/7", "--load"),
        ("--lr 1 --warm a.pt", "--warm"),
        ("--lr 1 --out_dir ckpt.pt", None),
        ("--lr 1 --load false", None),
        ("--lr 1 --old b.pt", None),
    ],
)
def test_what_was_typed_and_may_be_a_checkpoint(args: str, flag: str | None) -> None:
    assert perhaps_start(args.split(), ["--lr", "1", "--old", "b.pt"]) == flag
