"""The spelling of what a run file records of a job: files and settings of other versions hold these words."""

from __future__ import annotations

from tests.spelling import words_of_kinds

WORDS = {
    "AccumulationCounts": "per_rank all_ranks",
    "BatchUnit": "samples tokens",
    "EntryKind": "script module command trainer",
    "KeyType": "whole number number text true or false",
    "Certainty": "measured asked refused",
    "KnobScope": "per_rank per_node global unknown",
    "Measure": "allocator device resident",
    "Place": "argument environment file",
    "Topic": "script arguments python ranks nodes address resume file",
    "Unread": "scope micro accumulation counter exit_code resume",
    "Why": "loader fed pieces first_dimension second_dimension batches backwards call_text name_and_value derived"
    " no_accumulation declared several several_loaders by_name by_value arithmetic scope global_variable unconfirmed nothing_seen"
    " unknown_shape no_step too_few_steps changing ranks_differ fixed_in_code without_batch",
}  # fmt: skip


def test_the_words_of_every_kind_keep_their_spelling() -> None:
    assert words_of_kinds("supervisor.job") == WORDS
