"""A line is named in few words that still tell which file of which rank it stands in."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.job.spec import BatchQuestion, Unread
from supervisor.run.events import BatchAnswered
from supervisor.run.state import AttemptState, RankState
from supervisor.views.wording.phrases import given_text, is_stacks, of_project, place_of
from supervisor.views.wording.translate import english

TREE = "torchrun/none_ab12/attempt_0"
ATTEMPT = AttemptState(
    number=2,
    planned_t=0.0,
    ranks={
        0: RankState(local_rank=0, rank=8, stdout=f"{TREE}/0/stdout.log", stderr=f"{TREE}/0/stderr.log"),
        1: RankState(local_rank=1, stdout="/var/log/all.log", stderr="/var/log/all.log"),
        2: RankState(local_rank=2, stdout="/w/watched.log", stderr="tree/2/stderr.log"),
        3: RankState(local_rank=3, rank=0, stdout="/w/known.log"),
    },
)


@pytest.mark.parametrize(
    ("path", "line", "said"),
    [
        (f"{TREE}/0/stderr.log", 4, "rank 8 stderr.log:4"),
        (f"/data/runs/x/nodes/0/attempts/2/{TREE}/0/stdout.log", 7, "rank 8 stdout.log:7"),
        ("/var/log/all.log", 7, "log/all.log:7"), ("/w/watched.log", 7, "w/watched.log:7"),
        ("/w/known.log", 7, "rank 0 known.log:7"), ("tree/2/stderr.log", 7, "rank 2 stderr.log:7"),
        ("../../../../artifacts/stacks-2-1.txt", 1, "artifacts/stacks-2-1.txt:1"), ("agent.log", None, "agent.log"),
        ("/data/runs/x/nodes/0/attempts/2/agent.log", 3, "agent.log:3"),
        ("../1/agent.log", 3, "nodes/0/attempts/1/agent.log:3"),
        ("../../../../../elsewhere/x.log", 3, "elsewhere/x.log:3"),
    ],
)  # fmt: skip
def test_place(path: str, line: int | None, said: str) -> None:
    assert place_of(ATTEMPT, path, line) == said


@pytest.mark.parametrize(
    ("path", "folder", "shown"),
    [
        ("/job/a/b/train.py", "/job", "a/b/train.py"), ("/job/train.py", "/job/", "train.py"),
        ("/jobs/train.py", "/job", "/jobs/train.py"), ("/other/place/of/train.py", "/job", "…/of/train.py"),
        ("/x/train.py", None, "/x/train.py"), ("./a/../train.py", "/job", "train.py"), ("", "/job", ""),
    ],
)  # fmt: skip
def test_a_source_file_as_the_project_calls_it(path: str, folder: str | None, shown: str) -> None:
    assert of_project(path, folder) == shown


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "24 is per rank"),
        ({"by": "ada"}, "ada answered: 24 is per rank"),
        ({"trial": 2}, "trial 2: 24 is per rank"),
        ({"day": "2026-11-22", "by": "ada"}, "you answered on 2026-11-22: 24 is per rank"),
    ],
)
def test_an_answer_is_said_with_who_gave_it(facts: dict[str, Any], said: str) -> None:
    question = BatchQuestion(Unread.SCOPE, "--bs", 24, ())
    answered = BatchAnswered(t=0.0, question=question, value="per_rank", **facts)
    assert given_text(answered, english) == said


@pytest.mark.parametrize(
    ("path", "stacks"),
    [
        ("artifacts/stacks-1-2.txt", True), ("/r/artifacts/stacks-1.txt", True),
        ("artifacts/dump.txt", False), ("logs/stacks-1.txt", False), ("stacks-1.txt", False), (None, False),
    ],
)  # fmt: skip
def test_stacks_are_no_log(path: str | None, stacks: bool) -> None:
    assert is_stacks(path) is stacks
