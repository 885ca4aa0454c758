"""Where a foreign script may start from, as its arguments say."""

from __future__ import annotations

import pytest

from supervisor.job.arguments.command_line import settings_of
from supervisor.job.knobs.resume_settings import (
    USUAL_OUTPUTS,
    find_outputs,
    given_start,
)


def test_the_folders_are_those_that_the_script_is_told_then_those_that_frameworks_choose() -> None:
    found = find_outputs(settings_of(["--output-dir", "mine", "--lr", "1", "trainer.default_root_dir=lit"]))
    assert found == ("mine", "lit", *USUAL_OUTPUTS)
    words = "--save runs/b.pt --results c --out results.json --save_to 5 --out_file true"
    assert find_outputs(settings_of(words.split())) == ("runs/b.pt", "c", *USUAL_OUTPUTS)


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
