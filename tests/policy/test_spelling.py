"""The spelling of what policy answers and learns of: files and settings of other versions hold these words."""

from __future__ import annotations

from tests.spelling import words_of_kinds

WORDS = {
    "Answer": "shrink restart new_port no_libuv raise_files fewer_workers resume_earlier unmeasured exclude_gpu requeue hold stop",
    "SpentOn": "data compute saves evaluation first_steps slow_steps growing",
    "Stage": "step start compile evaluation checkpoint",
}  # fmt: skip


def test_the_words_of_every_kind_keep_their_spelling() -> None:
    assert words_of_kinds("supervisor.policy") == WORDS
