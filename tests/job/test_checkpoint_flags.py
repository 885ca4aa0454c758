"""Where a foreign script may start from, as its arguments say."""

from __future__ import annotations

import pytest

from supervisor.job.arguments.command_line import settings_of
from supervisor.job.knobs.resume_settings import USUAL_OUTPUTS, find_outputs, given_start
from tests.job.lines import job as line_job


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--output-dir mine --lr 1 trainer.default_root_dir=lit", ("mine", "lit")),
        ("--output_dir 42 --save_dir exp.v1", ("42", "exp.v1")),
        ("--out checkpoints --output_dir outputs", ("checkpoints", "outputs")),
        ("--output_path ckpts/exp.v2 --save_path run.lora", ("ckpts/exp.v2", "run.lora")),
        ("--save runs/b.pt --results c --out results.json --save_to 5 --out_file true", ("runs/b.pt", "c")),
        ("--lr 1", ()),
    ],
)
def test_what_the_arguments_name_as_written_to(words: str, named: tuple[str, ...]) -> None:
    assert find_outputs(settings_of(words.split())) == named
    job = line_job(f"train.py {words}")
    assert job.output_prefixes == named
    assert job.outputs == (*named, *(folder for folder in USUAL_OUTPUTS if folder not in named))


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
