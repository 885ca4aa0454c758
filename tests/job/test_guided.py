"""The model of the guided start: what is asked, what an answer does, the file that comes of it."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from supervisor.job.arguments.run_arguments import INIT_FLAGS, parse_run_argv
from supervisor.job.errors import JobError
from supervisor.job.launch.guided import (
    Around,
    Choices,
    Found,
    GuidedStart,
    Slurm,
    Topic,
    choices_of,
    command_of,
    job_file,
    likely_scripts,
)
from tests.conftest import not_none

KNOWN = Found((("batch", "micro-batch 8"),), "self")
SECRET = "hf_" + "aBcD1eFg2HiJ3kLmN4oPq5RsT6uVw7XyZ8"


def given_words(*words: str, file: str = "") -> Choices:
    return choices_of(parse_run_argv(words, env={}, more_own=INIT_FLAGS), file)


def course(around: Around, found: Found, choices: Choices | None = None) -> GuidedStart:
    around = replace(around, python=around.python or "torch 2.9 in python")
    return GuidedStart(around, choices or Choices(), lambda _: found)


def answer_all(start: GuidedStart, answers: dict[Topic, str]) -> list[Topic]:
    """Gives these answers, else what is proposed; the topics in the order in which they were asked."""
    asked = []
    while (question := start.question()) is not None:
        asked.append(question.topic)
        start.take(answers.get(question.topic, ""))
    return asked


def test_one_machine_with_all_that_is_proposed() -> None:
    start = course(Around(("train.py", "eval.py"), gpus=2), KNOWN)
    assert answer_all(start, {}) == [Topic.SCRIPT, Topic.ARGUMENTS, Topic.RANKS, Topic.NODES, Topic.FILE]
    assert tomllib.loads(job_file(start.choices)) == {
        "run": {"script": "train.py", "nproc_per_node": 2, "nnodes": 1}
    }
    assert command_of(start.choices, start.around) == "stoker run --config train.toml"


def test_answers_of_a_person() -> None:
    start = course(Around(("train.py", "eval.py")), Found((), "unknown"))
    asked = answer_all(
        start,
        {
            Topic.SCRIPT: "2",
            Topic.ARGUMENTS: "--lr 3e-4 --name 'two words'",
            Topic.RANKS: "4",
            Topic.NODES: "2",
            Topic.ADDRESS: "n01",
            Topic.RESUME: "--resume=auto",
            Topic.FILE: "jobs/first.toml",
        },
    )
    assert asked[-2:] == [Topic.RESUME, Topic.FILE]
    assert tomllib.loads(job_file(start.choices)) == {
        "run": {
            "script": "eval.py",
            "args": ["--lr", "3e-4", "--name", "two words"],
            "nproc_per_node": 4,
            "nnodes": 2,
            "master_addr": "n01",
        },
        "resume": {"knob": "--resume=auto"},
    }
    assert command_of(start.choices, start.around) == "stoker run --config jobs/first.toml --node-rank K"


@pytest.mark.parametrize(
    ("resume", "answer", "written"),
    [
        ("unknown", "wait", None),
        ("unknown", "self", {"resume": {"self_resuming": True}}),
        ("none", "3", {"resume": {"self_resuming": True}}),
        ("none", "scratch", {"policy": {"restart_from_scratch": True}}),
        ("unknown", "resume=auto", {"resume": {"knob": "resume=auto"}}),
    ],
)
def test_how_it_resumes(resume: str, answer: str, written: dict[str, object] | None) -> None:
    start = course(Around(("t.py",)), Found((), resume))
    answer_all(start, {Topic.RESUME: answer})
    held = tomllib.loads(job_file(start.choices))
    del held["run"]
    assert held == (written or {})


@pytest.mark.parametrize(("answer", "written"), [("", None), ("/opt/python", "/opt/python")])
def test_without_a_torch_the_interpreter_is_asked_for(answer: str, written: str | None) -> None:
    start = GuidedStart(Around(("t.py",)), Choices(), lambda _: KNOWN)
    assert "no Python with torch is found here" in start.around.lines()
    assert Topic.PYTHON in answer_all(start, {Topic.PYTHON: answer})
    assert tomllib.loads(job_file(start.choices))["run"].get("python") == written


def test_what_was_given_is_not_asked() -> None:
    words = ("--nproc-per-node", "2", "--nnodes=1", "--max-retries", "5", "--self-resuming", "--no-retry")
    choices = given_words(*words, "--env", "A=b", "--hold", "1.5", "t.py", "--lr", "1", file="j.toml")
    start = course(Around(), KNOWN, choices)
    assert start.question() is None
    assert tomllib.loads(job_file(start.choices)) == {
        "run": {"script": "t.py", "args": ["--lr", "1"], "nproc_per_node": 2, "nnodes": 1},
        "resume": {"self_resuming": True},
        "policy": {"max_retries": 5, "retry": False, "hold_s": 1.5},
        "env": {"A": "b"},
    }


@pytest.mark.parametrize(
    ("topic", "wrong", "words"),
    [
        (Topic.SCRIPT, "3", "1 to 2"),
        (Topic.SCRIPT, "0", "1 to 2"),
        (Topic.ARGUMENTS, "--a 'b", "close the quote"),
        (Topic.ARGUMENTS, f"--token {SECRET}", "secret"),
        (Topic.RANKS, "0", "at least 1"),
        (Topic.RANKS, "two", "'two'"),
        (Topic.NODES, "0", "at least 1"),
        (Topic.NODES, "²", "at least 1"),
        (Topic.RESUME, "maybe", "--resume"),
        (Topic.FILE, "job.yaml", ".toml"),
        (Topic.FILE, "stoker.toml", "stoker.toml"),
        (Topic.FILE, "taken.toml", "already exists"),
    ],
)
def test_a_wrong_answer_changes_nothing(topic: Topic, wrong: str, words: str) -> None:
    start = course(Around(("train.py", "u.py"), files=frozenset(["taken.toml"])), Found((), "none"))
    while (question := start.question()) is not None and question.topic is not topic:
        start.take("")
    before = start.choices
    with pytest.raises(JobError, match=words):
        start.take(wrong)
    assert start.choices == before
    assert start.question() == question


def test_scripts_that_train_come_first() -> None:
    names = ["setup.py", "tools.py", "lib/train_ppo.py", "train.py", "test_train.py"]
    assert likely_scripts(names) == ("train.py", "lib/train_ppo.py", "tools.py")


@pytest.mark.parametrize(
    ("scripts", "proposed"), [(("train.py", "a.py"), "train.py"), (("a.py",), "a.py"), (("a.py", "b.py"), "")]
)
def test_none_of_several_files_is_proposed_that_are_not_named_like_it(
    scripts: tuple[str, ...], proposed: str
) -> None:
    question = not_none(course(Around(scripts), KNOWN).question())
    assert (question.default, [option.value for option in question.options]) == (proposed, [*scripts])


def test_under_slurm_one_command_starts_all_machines() -> None:
    start = course(Around(("t.py",), 4, Slurm("7", 2, "n01")), KNOWN)
    answer_all(start, {})
    assert tomllib.loads(job_file(start.choices))["run"]["master_addr"] == "n01"
    assert command_of(start.choices, start.around) == (
        "srun --ntasks-per-node=1 sh -c 'stoker run --config t.toml --no-ui --node-rank $SLURM_NODEID'"
    )
