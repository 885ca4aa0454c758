"""From recorded facts to the words that make the micro-batch half as large, with the same global batch."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from supervisor.job.batch import BatchSpec, BatchUnit
from supervisor.job.knobs.measured_knobs import (
    MeasuredSettings,
    RankProcess,
    measured_settings,
    with_measured,
)
from supervisor.job.knobs.named_settings import find_knobs
from supervisor.job.knobs.set_batch import batch_of, batch_values
from supervisor.job.launch.oom_plan import four_lines
from supervisor.job.launch.plan import applied_in
from supervisor.job.memory_fit import choose_smaller
from supervisor.job.spec import AccumulationCounts, EntryKind, FoundNumber, JobSpec, Knobs, KnobScope
from tests.instrument.truths import truths
from tests.job.test_measured import derived, loader, made, phase, recorded, setting, shape

JOB = JobSpec(name="job", entry_kind=EntryKind.SCRIPT, entry="train.py", cwd="/job", nproc_per_node=2)
WORDS = {
    "s03_nanogpt": "--batch_size=4 --gradient_accumulation_steps=16",
    "s05_hf": "--per_device_train_batch_size=2 --gradient_accumulation_steps=4",
    "s06_accel": "--per_device_train_batch_size=2 --gradient_accumulation_steps=8",
    "s07_lightning": "--bs=4 --accum=4",
    "s08_lcli": "--data.batch_size=4 --trainer.accumulate_grad_batches=4",
    "s09_trl": "--per_device_train_batch_size=4 --gradient_accumulation_steps=2",
    "s10_timm": "--batch-size=4 --grad-accum-steps=4",
    "s14_packed": "--batch_size=4 --gas=4",
    "s16_tyro": "--batch-size=4 --accum=4",
    "s21_bash": "--mbs=4 --ga=4",
    "s23_yaml": "/job/s23.yaml#train.batch_size=4 /job/s23.yaml#train.accum=4",
    "s28_compile": "--device_batch_size=4 --total_batch_size=512",
    "s29_fsdp2": "--micro-batch-size=2 --global-batch-size=16",
    "s31_yolo": "--batch-size=8 --nbs=64",
    "h01_cut": "--micro_batch_size=2 --batch_size=16",
    "h06_json": "/job/h06.json#training.batch.size=4 /job/h06.json#training.batch.accumulate=4",
}
"""Styles that can keep their global batch. A derived accumulation follows from a total, which is set to what it is."""
REFUSED = {
    "s13_maxtok": "the micro-batch could not be measured",
    "s24_const": "what makes the 8 samples of a rank is in the code (/job/s24_const.py:10): no setting has that value",
    "s25_zeta": "what makes the accumulation of 2 is not certain: perhaps --rho, --xi",
    "h02_ppo": "the micro-batch could not be measured",
    "h03_pk": "what makes the 16 samples of a rank is in the code (/job/h03_pk.py:13): no setting has that value",
    "h04_two": "what makes the 8 samples of a rank is one of --batch_size, --mini_batch_size",
    "h05_preset": "what makes the 8 samples of a rank is not certain: perhaps --chunk",
    "h08_oom": "no complete step was measured, so the accumulation is not known",
    "h07_pyconfig": "what makes the accumulation of 2 is in the code (/job/h07_pyconfig.py:15): no setting has that value",
}
NAMES = [truth["name"] for truth in truths("truth.jsonl") + truths("hard.jsonl")]


def smaller(job: JobSpec) -> str:
    """The words of the next smaller micro-batch with the same global batch."""
    assert job.batch is not None
    choice = choose_smaller(job.batch, minimum=1)
    assert choice is not None
    assert choice.batch.global_batch == job.batch.global_batch
    pairs = batch_values(job.knobs, choice.batch, before=job.batch, local_world_size=job.nproc_per_node)
    return " ".join(map("=".join, pairs))


@pytest.mark.parametrize("name", NAMES)
def test_each_style_has_its_words_or_the_reason_why_it_has_none(name: str) -> None:
    job = with_measured(JOB, measured_settings(derived(recorded(name)), Knobs()))
    if name in WORDS:
        assert smaller(job) == WORDS[name]
    else:
        assert job.knobs.refusal == REFUSED.get(name, "")
        assert not job.knobs.can_change_batch


def test_a_declared_name_holds_and_its_size_is_measured() -> None:
    named = Knobs(batch="--zeta", accumulation="--rho", declared=True)
    job = replace(JOB, knobs=named)
    seen = measured_settings(derived(recorded("s25_zeta"), named=named), named)
    assert smaller(with_measured(job, seen)) == "--zeta=8 --rho=4"


def test_a_declared_name_that_the_measured_batch_contradicts_changes_nothing() -> None:
    job = replace(
        JOB, knobs=Knobs("--size", KnobScope.PER_RANK, "--accum", declared=True), batch=BatchSpec(16, 1, 2)
    )
    changed = with_measured(job, MeasuredSettings(batch=BatchSpec(8, 1, 2)))
    assert not changed.knobs.can_change_batch
    assert changed.knobs.refusal == (
        "--size would make micro-batch 16 × accumulation 1, and micro-batch 8 × accumulation 1 was measured"
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_batch_that_the_loop_cuts_is_cut_into_more_pieces(ranks: int) -> None:
    """Of a loader's 12 samples the loop makes passes of 4: the number of pieces is a setting, and what is loaded stays."""
    fed = [shape(step, 12, "batch") for step in range(4)]
    cut = [shape(step, 4) for step in range(4) for _ in range(3)]
    passes = [made(step, 3, batches=1) for step in range(4)]
    values = {"train.batch_size": 12, "train.subdivision": 3, "model.depth": 4}
    settings = [setting(name, value, "argv", given=True, words=[name]) for name, value in values.items()]
    run = [phase(world=ranks), loader(12), *fed, *cut, *passes]
    found = derived([*settings, *run])
    assert (found.micro.number, found.accumulated.number, found.world_size) == (4, 3, ranks)
    assert found.set_by.setting is not None
    assert (found.set_by.setting.name, found.set_by.scope, found.counts_accumulation) == (
        "train.batch_size",
        KnobScope.PER_RANK,
        True,
    )
    assert smaller(with_measured(JOB, measured_settings(found, Knobs()))) == (
        "train.batch_size=12 train.subdivision=6"
    )
    alone = derived([settings[0], settings[2], *run])
    assert alone.set_by.setting is None  # what cuts it is not known


def test_a_batch_that_moves_the_learning_rate_is_left_alone_also_once_it_is_measured() -> None:
    words = ("--auto-scale-lr", "--cfg-options", "optim_wrapper.accumulative_counts=2", "batch_size=32")
    seen = MeasuredSettings(
        BatchSpec(32, 2, 2),
        "batch_size",
        KnobScope.PER_RANK,
        accumulation="optim_wrapper.accumulative_counts",
    )
    safe, unsafe = (
        with_measured(replace(JOB, entry_args=args, knobs=find_knobs(args)), seen)
        for args in (words[1:], words)
    )
    assert smaller(safe) == "batch_size=16 optim_wrapper.accumulative_counts=4"
    assert not unsafe.knobs.can_change_batch
    assert unsafe.knobs.refusal == "--auto-scale-lr scales the learning rate by the micro-batch alone"


def test_a_plan_for_the_ranks_names_all_words_of_an_option() -> None:
    rank = RankProcess(("python", "train.py", "-b", "16"), {"--batch": ("--batch", "-b")})
    pairs = [
        ("--batch", "8"),
        ("model.accum", "4"),
        ("env:SIZE", "8"),
        ("conf.yaml#a.b", "2"),
        ("--resume", ""),
    ]
    variables = applied_in(rank, pairs, "/job")
    assert variables["SIZE"] == "8"
    assert json.loads(variables["STOKER_APPLY"]) == {
        "argv": ["python", "train.py", "-b", "16"],
        "options": [
            {"words": ["--batch", "-b"], "name": "--batch", "value": 8},
            {"words": ["model.accum"], "name": "model.accum", "value": 4},
            {"words": ["--resume"], "name": "--resume", "value": True},
        ],
        "environ": {"SIZE": "8"},
        "files": [{"path": "/job/conf.yaml", "key": "a.b", "value": 2}],
    }


SEEN = BatchSpec(8, 2, 2)
EIGHT_TWICE = (FoundNumber("micro", 8, "measured"), FoundNumber("accumulation", 2, "measured"))


@pytest.mark.parametrize(
    ("given", "seen", "knobs", "batch"),
    [
        (Knobs(), MeasuredSettings(), Knobs(), None),
        (Knobs(), MeasuredSettings(batch=SEEN, setting="--bs", scope=KnobScope.PER_RANK, accumulation="--ga"), Knobs(batch="--bs", batch_scope=KnobScope.PER_RANK, accumulation="--ga", found=EIGHT_TWICE), SEEN),
        (Knobs(), MeasuredSettings(batch=SEEN, setting="--bs", scope=KnobScope.PER_RANK, accumulation="--ga", accumulation_counts_ranks=True), Knobs(batch="--bs", batch_scope=KnobScope.PER_RANK, accumulation="--ga", counts=AccumulationCounts.ALL_RANKS, found=(FoundNumber("micro", 8, "measured"), FoundNumber("accumulation", 4, "measured"))), SEEN),
        (Knobs(), MeasuredSettings(batch=SEEN, setting="--bs", scope=KnobScope.GLOBAL, accumulation="--ga"), Knobs(batch="--bs", batch_scope=KnobScope.GLOBAL, accumulation="--ga", paired=True, found=(FoundNumber("micro", 16, "measured"), FoundNumber("accumulation", 2, "measured"))), SEEN),
        (Knobs(), MeasuredSettings(batch=SEEN, setting="--mbs", scope=KnobScope.PER_RANK, accumulation="derived", total=("--total", 32)), Knobs(batch="--mbs", batch_scope=KnobScope.PER_RANK, global_batch="--total", same=(("--total", "32"),), found=(FoundNumber("micro", 8, "measured"), FoundNumber("total", 32, "measured"))), SEEN),
        (Knobs(), MeasuredSettings(batch=SEEN, setting="--bs", scope=KnobScope.PER_RANK, accumulation="none", total=("--bs", 16)), Knobs(batch="--bs", batch_scope=KnobScope.PER_RANK, same=(("--bs", "16"),), found=(FoundNumber("micro", 16, "measured"),)), SEEN),
        (Knobs(), MeasuredSettings(batch=SEEN, setting="--bs", scope=KnobScope.GLOBAL, counts_accumulation=True, accumulation="none"), Knobs(batch="--bs", batch_scope=KnobScope.GLOBAL, found=(FoundNumber("micro", 32, "measured"),)), SEEN),
        (Knobs(), MeasuredSettings(batch=SEEN, setting="--bs", scope=KnobScope.PER_RANK, counts_accumulation=True, accumulation="--cuts"), Knobs(batch="--bs", batch_scope=KnobScope.GLOBAL, accumulation="--cuts", found=(FoundNumber("micro", 16, "measured"), FoundNumber("accumulation", 2, "measured"))), BatchSpec(8, 2, 1, ranks_known=False)),
        (Knobs(batch="--b", batch_scope=KnobScope.PER_NODE, declared=True), MeasuredSettings(batch=SEEN, setting="--b", scope=KnobScope.PER_RANK, accumulation="--ga"), Knobs(batch="--b", batch_scope=KnobScope.PER_NODE, accumulation="--ga", declared=True, found=(FoundNumber("micro", 16, "measured"), FoundNumber("accumulation", 2, "measured"))), SEEN),
        (Knobs(batch="--b", batch_scope=KnobScope.PER_RANK), MeasuredSettings(batch=SEEN, setting="--other", scope=KnobScope.PER_RANK, accumulation="--ga"), Knobs(batch="--other", batch_scope=KnobScope.PER_RANK, accumulation="--ga", found=EIGHT_TWICE), SEEN),
        (Knobs(refusal="why", help="how"), MeasuredSettings(batch=SEEN, setting="--bs", accumulation="--ga"), Knobs(batch="--bs", accumulation="--ga", refusal="why", help="how", found=EIGHT_TWICE), SEEN),
        (Knobs(unsafe="not safe"), MeasuredSettings(batch=SEEN, setting="--bs", scope=KnobScope.PER_RANK, accumulation="--ga"), Knobs(batch="--bs", batch_scope=KnobScope.PER_RANK, accumulation="--ga", refusal="not safe", found=EIGHT_TWICE, unsafe="not safe"), SEEN),
        (Knobs(), MeasuredSettings(refusal="seen why", help="seen how"), Knobs(refusal="seen why", help="seen how"), None),
    ],
)  # fmt: skip
def test_what_was_measured_is_set_by_these_knobs(
    given: Knobs, seen: MeasuredSettings, knobs: Knobs, batch: BatchSpec | None
) -> None:
    made = with_measured(replace(JOB, knobs=given), seen)
    assert (made.knobs, made.batch, made.knobs.found) == (knobs, batch, knobs.found)


def test_a_measured_total_counts_once_its_unit_is_known() -> None:
    seen = MeasuredSettings(
        batch=SEEN, setting="--mbs", scope=KnobScope.PER_RANK, accumulation="derived", total=("--total", 32)
    )
    knobs = with_measured(JOB, seen).knobs
    counted = partial(batch_of, (), knobs, world_size=2, local_world_size=2)
    assert counted(unit=BatchUnit.SAMPLES) == SEEN
    assert counted() == BatchSpec(8, 1, 1, ranks_known=False)


def test_a_batch_of_a_node_is_shown_with_what_it_holds() -> None:
    """Its ranks have 8 samples each."""
    given = Knobs("--b", KnobScope.PER_NODE, declared=True)
    seen = MeasuredSettings(batch=SEEN, setting="--b", scope=KnobScope.PER_RANK, accumulation="--ga")
    batch, change, then, _ = four_lines(with_measured(replace(JOB, knobs=given), seen))
    assert batch == "micro-batch 16 (--b, measured) · accumulation 2 (--ga, measured) · × 2 ranks"
    assert change == "--b 16 → 8, --ga 2 → 4 (same global batch)"
    assert then == "--b 8 → 4, --ga 4 → 8; --b 4 → 2, --ga 8 → 16"
