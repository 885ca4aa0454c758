"""The command that starts a job again leads to the same job."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from supervisor.job.arguments.run_arguments import OWNED, STOKER_FLAGS, TORCHRUN_FLAGS, Flag, parse_run_argv
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.job.errors import JobError
from supervisor.job.launch.plan import command_of
from supervisor.job.setting_keys import KeyType
from tests.job.lines import job as resolved

FOREIGN = '[run]\nscript = "train.py"\nargs = ["--lr", "1"]\nnproc_per_node = 2\n'
TRAINER = "device_batch_size = 4\ntotal_batch_size = 8192\n"


@pytest.mark.parametrize(
    "line",
    [
        "train.py",
        "--nproc-per-node 2 train.py --how 'a b' --x=1",
        "--nproc-per-node 2 --max-retries 1 --no-retry --env A='x y' --env B=2 train.py",
        "--nproc_per_node=2 --standalone --rdzv-backend c10d -m pkg.train --lr 3e-4",
        "--name mine --grace 5 -- python -u train.py --lr 3e-4",
        "--nproc-per-node 2 --batch-knob --bs --accumulation-knob --acc --batch-scope per_rank train.py --bs 4 --acc 2",
        "--resume-knob --resume=auto --batch-knob --bs --batch-scope per_rank --accumulation-knob --acc --micro-batch 4 train.py --bs 8 --acc 1",
        "--restart-from-scratch --master-port 29511 train.py",
    ],
)
def test_it_is_the_same_job(line: str) -> None:
    job = resolved(line)
    command = command_of(job)
    assert command is not None
    assert command.startswith("stoker run ")
    again = resolved(command.removeprefix("stoker run "))
    assert replace(again, origins=()) == replace(job, origins=())


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("--config job.toml --nproc-per-node 4", FOREIGN),
        ("--config job.toml", FOREIGN),
        ("--config job.toml --num_iterations=50", TRAINER),
        ("--config job.toml --device_batch_size=8 --nproc-per-node 1", TRAINER),
    ],
)
def test_a_job_of_a_file_names_the_file_and_what_was_said_besides(line: str, file: str) -> None:
    job = resolved(line, file)
    command = command_of(job)
    assert command is not None
    assert command.startswith("stoker run --config job.toml")
    assert "train.py" not in command
    again = resolved(command.removeprefix("stoker run "), file)
    assert replace(again, origins=()) == replace(job, origins=())


REPEATED = [
    flag
    for flag in STOKER_FLAGS
    if flag.key not in {"config", "run_dir", "dry_run", "show_config", "check_only"}
]
OF_TORCHRUN = [flag for flag in TORCHRUN_FLAGS if flag.key not in {*OWNED, "module"}]
VALUES = {KeyType.TEXT: "a-b", KeyType.INT: "3", KeyType.FLOAT: "40"}
SPECIAL = {"env": "A=x y", "nnodes": "2", "nproc_per_node": "2", "node_rank": "1", "micro_batch": "4", "global_batch": "24", "batch_knob": "--bs", "accumulation_knob": "--ga"}  # fmt: skip


def printed(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted((key, value.removesuffix(".0")) for key, value in pairs)


def words_of(flag: Flag) -> list[str]:
    if not flag.takes_value:
        return [flag.name]
    return [flag.name, flag.choices[0] if flag.choices else SPECIAL.get(flag.key, VALUES[flag.kind])]


@given(st.sets(st.sampled_from([*REPEATED, *OF_TORCHRUN]), max_size=12))
@example({*REPEATED})
@example({*OF_TORCHRUN})
def test_each_flag_that_was_given_is_printed(flags: set[Flag]) -> None:
    by_name = sorted(flags, key=lambda flag: flag.name)
    words = [word for flag in by_name for word in words_of(flag)]
    line = [*words, "train.py", "--bs", "8", "--ga", "1"]
    parsed = parse_run_argv(line)
    try:
        job = resolve_job(JobInputs(parsed, {}, "/w"))
    except JobError:
        reject()  # such flags contradict each other
    command = command_of(job)
    assert command is not None
    again = parse_run_argv(shlex.split(command)[2:])
    assert printed(again.stoker) == printed(parsed.stoker)
    if {"trial", "single_gpu"}.isdisjoint(dict(parsed.stoker)):  # one rank meets no other
        assert printed(again.torchrun) == printed(parsed.torchrun)
