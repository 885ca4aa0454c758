"""Facts of real two-rank runs, recorded: what follows from them is right or asked, and never wrong.

``tests/instrument/styles`` has two of the scripts; ``truth.jsonl`` (32 styles of public projects) and ``hard.jsonl`` (eight made to mislead)
what is true of them, and ``tests/job/measured`` the records of one run each.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.knobs.measured import Certainty, MeasuredBatch, Why, measured_batch
from supervisor.job.knobs.written_facts import Facts
from supervisor.job.spec import Knobs, KnobScope
from tests.instrument.truths import QUESTIONS, answers, right, truths, wrong

RECORDED = Path(__file__).parent / "measured"
USUAL, HARD = truths("truth.jsonl"), truths("hard.jsonl")
Record = dict[str, Any]


@cache
def recorded(name: str) -> tuple[Record, ...]:
    with gzip.open(RECORDED / f"{name}.jsonl.gz", "rt") as file:
        return tuple(json.loads(line) for line in file)


def derived(
    records: Iterable[Mapping[str, object]], local_world_size: int | None = None, named: Knobs | None = None
) -> MeasuredBatch:
    facts = Facts()
    for record in records:
        facts.add(record)
    return measured_batch(facts, local_world_size=local_world_size, named=named)


@pytest.mark.parametrize("truth", USUAL + HARD, ids=lambda truth: truth["name"])
def test_no_style_is_answered_wrongly_while_its_first_steps_are_measured(truth: Record) -> None:
    facts = Facts()
    for record in recorded(truth["name"]):
        facts.add(record)
        if record["kind"] != "setting":
            assert wrong(truth, measured_batch(facts)) == [], record


def test_of_32_styles_at_least_31_are_right_in_each_question() -> None:
    missed: dict[str, list[str]] = {question: [] for question in QUESTIONS}
    for truth in USUAL:
        for question, (answer, _) in answers(derived(recorded(truth["name"]))).items():
            if answer != right(truth, question):
                missed[question].append(truth["name"])
    assert all(len(names) <= 1 for names in missed.values()), missed


def phase(rank: int = 0, world: int = 2, pid: int = 1) -> Record:
    return {"kind": "phase", "rank": rank, "pid": pid, "world_size": world}


def setting(name: str, value: object, by: str = "argparse", **keys: object) -> Record:
    return {
        "kind": "setting",
        "rank": 0,
        "by": by,
        "name": name,
        "value": value,
        "type": type(value).__name__,
        **keys,
    }


def loader(size: int | None, **keys: object) -> Record:
    return {
        "kind": "loader",
        "rank": 0,
        "id": 1,
        "batch_size": size,
        "workers": 0,
        "at": "train.py:9",
        **keys,
    }


def shape(step: int, size: int, of: str = "forward", loader: int | None = 1, **keys: object) -> Record:
    return {
        "kind": "shape",
        "rank": 0,
        "step": step,
        "loader": loader,
        "of": of,
        "shapes": [[size, 16]],
        **keys,
    }


def made(step: int, passes: int = 1, **keys: object) -> Record:
    return {"kind": "step", "rank": 0, "step": step + 1, "steps": 1, "micro_steps": passes, **keys}


def steps(
    counts: Iterable[int],
    size: int = 8,
    *,
    loader: int | None = 1,
    rank: int = 0,
    of: str = "float32",
    length: int = 16,
) -> list[Record]:
    """Records of steps, each of so many batches of `size`, of `length` elements `of` a type."""
    records: list[Record] = []
    alike = {"rank": rank, "shapes": [[size, length]], "dtypes": [of]}
    for step, count in enumerate(counts):
        for _ in range(count if step < 4 else 0):
            records += [shape(step, size, "batch", loader, **alike)] if loader is not None else []
            records.append(shape(step, size, "forward", loader, **alike))
        batches = {"batches": count} if loader is not None else {}
        records.append(made(step, count, rank=rank, **batches))
    return records


def test_accumulation_is_known_once_three_steps_agree_and_follows_a_ramp() -> None:
    start = [phase(), loader(8)]
    assert derived([*start, *steps([2, 2])]).accumulated == derived([*start, *steps([4, 2])]).accumulated
    assert derived([*start, *steps([2, 2])]).accumulated.why is Why.TOO_FEW_STEPS
    assert derived([*start, *steps([1, 2, 4, 8])]).accumulated.why is Why.CHANGING
    assert derived([*start, *steps([1, 2, 4, 8, 8, 8])]).accumulated.number == 8


def test_scopes() -> None:
    def scope(value: int, times: int = 1, world: int = 4, local: int | None = None) -> MeasuredBatch:
        records = [phase(world=world), setting("batch_size", value), loader(8), *steps([times] * 4)]
        return derived(records, local)

    assert scope(8).set_by.scope is KnobScope.PER_RANK
    assert scope(32).set_by.scope is KnobScope.GLOBAL
    assert scope(16, local=2).set_by.scope is KnobScope.PER_NODE
    whole = scope(96, times=3)
    assert (whole.set_by.scope, whole.counts_accumulation) == (KnobScope.GLOBAL, True)
    # 32 is 8 × 4 ranks, or 8 × 4 passes on each.
    assert (scope(32, times=4).set_by.certainty, scope(32, times=4).set_by.why) == (
        Certainty.ASKED,
        Why.SCOPE,
    )


@pytest.mark.parametrize(
    ("of", "size", "length", "expected"),
    [
        ("int64", 8, 16, 16),
        ("int32", 8, 8, 8),
        ("float32", 8, 16, None),
        ("uint8", 8, 784, None),  # pixels: an embedding takes no bytes
        ("int64", 16, 8, None),  # two views of 8 samples
        ("int64", 8, 1, None),  # a class or a user
    ],
)
def test_only_rows_of_token_ids_have_a_length(of: str, size: int, length: int, expected: int | None) -> None:
    run = [phase(), loader(8), *steps([1] * 4, size, of=of, length=length)]
    assert derived(run).sequence_length == expected


def test_a_given_word_beats_a_file_of_a_library_and_a_default_does_not() -> None:
    run = [phase(), loader(8), *steps([1] * 4)]
    library = setting(
        "batch", 16, "yaml", file="/lib/default.yaml"
    )  # 8 × 2 ranks: it would fit as a global batch
    found = derived([library, setting("batch", 8, "argv", given=True), *run])
    assert found.set_by.setting is not None
    assert (found.set_by.setting.by, found.set_by.scope) == ("argv", KnobScope.PER_RANK)
    own = setting("train.batch_size", 8, "yaml", file="/job/own.yaml")
    found = derived([own, setting("batch_size", 32, given=False), *run])
    assert found.set_by.setting is not None
    assert found.set_by.setting.name == "train.batch_size"


def test_a_variable_of_the_script_is_asked_about_and_a_constant_of_the_call_is_the_codes() -> None:
    run = [phase(), setting("BATCH_SIZE", 8, "main"), *steps([1] * 4)]
    assert derived([loader(8, expression="n"), *run]).set_by.why is Why.GLOBAL_VARIABLE
    fixed = derived([loader(8, expression="BATCH_SIZE"), *run]).set_by
    assert (fixed.certainty, fixed.why) == (Certainty.REFUSED, Why.FIXED_IN_CODE)


def test_a_section_in_the_loaders_call_tells_settings_of_one_name_apart() -> None:
    both = [setting(f"{section}.IMS_PER_BATCH", 8, "argv", given=True) for section in ("TEST", "SOLVER")]
    run = [phase(), *both, *steps([1] * 4)]
    for text, name in (
        ("cfg.SOLVER.IMS_PER_BATCH", "SOLVER.IMS_PER_BATCH"),
        ("cfg.TEST.IMS_PER_BATCH", "TEST.IMS_PER_BATCH"),
        ("cfg.IMS_PER_BATCH", None),
    ):
        found = derived([loader(8, expression=text), *run])
        assert (found.set_by.setting.name if found.set_by.setting is not None else None) == name, text


def test_ranks_that_differ_are_refused_and_a_new_process_of_a_rank_starts_anew() -> None:
    run = [phase(), loader(8), *steps([1] * 4)]
    other = [phase(1), {**loader(4), "rank": 1}, *steps([1] * 4, 4, rank=1)]
    assert derived([*run, *other]).micro.why is Why.RANKS_DIFFER
    assert derived([*run, phase(pid=2), loader(4), *steps([2] * 4, 4)]).micro.number == 4


def test_two_loaders_whose_batches_are_joined_are_asked_about() -> None:
    """Labelled and unlabelled samples go through the model together."""
    records: list[Record] = [phase(), loader(8), {**loader(56), "id": 2}]
    for step in range(4):
        records += [shape(step, 8, "batch"), shape(step, 56, "batch", 2), shape(step, 64, loader=2)]
        records.append(made(step, batches=1))
    assert derived(records).micro.why is Why.SEVERAL_LOADERS


def test_a_piece_with_a_step_of_its_own_is_a_whole_pass() -> None:
    """Reinforcement learning from a loader: one batch of 32 gives four steps of 8."""
    records: list[Record] = [phase(world=4), loader(32), setting("batch_size", 32)]  # 8 × 4 ranks, too
    for step in range(8):
        records += [shape(step, 32, "batch")] if step == 0 else []
        records += [shape(step, 8)] if step < 4 else []
        records.append(made(step, batches=1 if step % 4 == 0 else 0))
    found = derived(records)
    assert (found.micro.number, found.accumulated.number, found.micro.why) == (8, 1, Why.PIECES)
    assert found.set_by.certainty is not Certainty.MEASURED


def test_a_loader_that_ran_before_training_feeds_none_of_it() -> None:
    """A script that evaluates from a loader, then trains on batches of its own."""
    read = [setting("eval_batch_size", 64), setting("batch_size", 48)]
    records: list[Record] = [phase(), loader(64), *read, shape(0, 64, "batch")]
    for step in range(4):
        records += [shape(step, 48), made(step, batches=1 if step == 0 else 0)]
    found = derived(records)
    assert (found.micro.number, found.micro.why) == (48, Why.FIRST_DIMENSION)


def test_two_fitting_settings_that_count_differently_are_asked_about() -> None:
    run = [phase(), loader(8), *steps([1] * 4)]
    both = derived([setting("train_batch_size", 16), setting("batch_size", 8), *run])
    assert (both.set_by.certainty, both.set_by.why) == (Certainty.ASKED, Why.SEVERAL)
    micro = derived([setting("micro_batch_size", 8), setting("global_batch_size", 16), *run])
    assert (micro.set_by.setting.name if micro.set_by.setting else None, micro.accumulation_setting) == (
        "micro_batch_size",
        "derived",
    )


def test_a_number_that_deepspeed_works_out_is_no_setting_and_its_total_counts_the_accumulation() -> None:
    made = [
        setting("train_micro_batch_size_per_gpu", 8, "deepspeed"),
        setting("train_batch_size", 16, "deepspeed"),
    ]
    found = derived([phase(), setting("train_batch_size", 16, "json"), *made, loader(8), *steps([1] * 4)])
    assert found.set_by.setting is not None
    assert (found.set_by.setting.by, found.set_by.setting.name, found.counts_accumulation) == (
        "json",
        "train_batch_size",
        True,
    )


NUMBER = st.one_of(st.integers(-2, 9), st.none(), st.just("8"), st.floats(0, 8), st.booleans())
RECORD = st.fixed_dictionaries(
    {"kind": st.sampled_from(("phase", "setting", "loader", "shape", "step", "timing", "saved", "loaded", "sought", "exit"))},
    optional={
        "rank": NUMBER, "pid": NUMBER, "world_size": NUMBER, "id": NUMBER, "batch_size": NUMBER, "workers": NUMBER, "step": NUMBER, "steps": NUMBER,
        "skipped": NUMBER, "batches": NUMBER, "micro_steps": NUMBER, "loader": NUMBER, "value": NUMBER, "path": st.sampled_from(("/a", "/a/b", 7, None)),
        "shapes": st.one_of(NUMBER, st.lists(st.one_of(NUMBER, st.lists(NUMBER, max_size=3)), max_size=2)),
        "of": st.sampled_from(("batch", "forward")),
        "by": st.sampled_from(("argv", "yaml", "main", "env", 3)), "name": st.sampled_from(("batch_size", "accum", "max_tokens", "resume", "workers", "x", 1)),
        "words": st.one_of(NUMBER, st.lists(st.one_of(st.just("--batch-size"), NUMBER), max_size=2)), "expression": st.sampled_from(("args.batch_size // 2", "(", 4)),
    },
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.lists(RECORD, max_size=14))
def test_no_records_raise(records: list[Record]) -> None:
    """They are a job's: whatever stands in the file, the supervisor process lives on."""
    derived(records)
