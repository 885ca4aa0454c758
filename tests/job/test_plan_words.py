"""A job's batch and what a memory failure would change, in words and as data: each form of a job once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from supervisor.job.batch import (
    BatchChange,
    BatchSpec,
    BatchUnit,
    MemoryPoint,
    candidates,
    describe,
    describe_change,
    resolve,
    with_micro_batch,
    without_numbers,
)
from supervisor.job.errors import JobError
from supervisor.job.knobs.places import Places, bare, is_argument, place_of
from supervisor.job.knobs.questions import with_declared
from supervisor.job.oom_plan import OomPlan, OomRefusal, answer, four_lines, oom_plan, resume_plan, world_size
from supervisor.job.plan import build_plan
from supervisor.job.spec import AccumulationCounts, EntryKind, FoundNumber, JobSpec, Knobs, KnobScope, Unread

BATCH = BatchSpec(8, 1, 2)
KNOBS = Knobs(
    batch="--bs",
    batch_scope=KnobScope.PER_RANK,
    accumulation="--acc",
    found=(FoundNumber("micro", 8, "command line"), FoundNumber("accumulation", 1, "default")),
)


def job(knobs: Knobs = KNOBS, batch: BatchSpec | None = BATCH, **values: object) -> JobSpec:
    known = {
        "name": "job",
        "entry_kind": EntryKind.SCRIPT,
        "entry": "train.py",
        "entry_args": ("--bs", "8"),
        "nproc_per_node": 2,
        "cwd": "/w",
        "instrument": False,
        "knobs": knobs,
        "batch": batch,
        **values,
    }
    return JobSpec(**known)  # type: ignore[arg-type]


# -- what a memory failure would change ------------------------------------------------------------------------


def test_each_step_down_to_the_least_micro_batch() -> None:
    plan = oom_plan(job())
    assert isinstance(plan, OomPlan)
    steps = [[(c.knob, c.old, c.new) for c in step] for step in (plan.changes, *plan.then)]
    assert steps == [
        [("--bs", "8", "4"), ("--acc", "1", "2")],
        [("--bs", "4", "2"), ("--acc", "2", "4")],
        [("--bs", "2", "1"), ("--acc", "4", "8")],
    ]
    least = job(retry=replace(job().retry, min_micro_batch=4))
    found = oom_plan(least)
    assert isinstance(found, OomPlan)
    assert found.then == ()


def test_why_nothing_would_change() -> None:
    none_left = oom_plan(job(batch=BatchSpec(1, 8, 2)))
    assert isinstance(none_left, OomRefusal)
    assert none_left.why == "no micro-batch of 1 or more below 1 is left"
    at_least = oom_plan(job(retry=replace(job().retry, min_micro_batch=8)))
    assert isinstance(at_least, OomRefusal)
    assert at_least.why == "no micro-batch of 8 or more below 8 is left"
    unknown = oom_plan(job(batch=None))
    assert isinstance(unknown, OomRefusal)
    assert unknown.help
    refused = oom_plan(job(replace(KNOBS, refusal="it divides by itself", help="say so")))
    assert refused == OomRefusal("it divides by itself", "say so", resume_plan(KNOBS))
    unnamed = oom_plan(job(Knobs()))
    assert isinstance(unnamed, OomRefusal)
    assert unnamed.why


@pytest.mark.parametrize(
    ("knobs", "plan"),
    [
        (Knobs(), ("unknown", None, None, None)),
        (Knobs(cannot_resume=True), ("none", None, None, None)),
        (Knobs(resume_step="--step"), ("flag", "--step", "STEP", "takes the step of a checkpoint")),
        (Knobs(resume_path="--ckpt", resume_step="--step"), ("flag", "--ckpt", None, None)),
        (
            Knobs(resume="--resume", resume_path="--ckpt", resumes="named"),
            ("flag", "--resume", "auto", "named"),
        ),
        (Knobs(resume="--resume", self_resuming=True, resumes="it looks"), ("self", None, None, "it looks")),
        (Knobs(resume_path="a.yaml#x"), ("flag", "a.yaml#x", None, None)),
    ],
)
def test_how_a_restart_would_go_on(knobs: Knobs, plan: tuple[str | None, ...]) -> None:
    found = resume_plan(knobs)
    assert (found.how, found.knob, found.value, found.source) == plan


def test_the_answer_of_a_dry_run() -> None:
    spec = job()
    plan = build_plan(
        spec, attempt=1, interpreter="python", run_dir="/r", attempt_dir="/r/1", base_env={}, port=29500
    )
    said = answer(spec, plan)
    assert said["batch"] == {
        "micro": {"value": 8, "knob": "--bs", "source": "command line"},
        "accumulation": {"value": 1, "knob": "--acc", "source": "default", "counts": "per_rank"},
        "global": 16,
        "unit": "samples",
        "scope": "per_rank",
        "world_size": 2,
    }
    assert said["on_oom"]["changes"][0] == {"knob": "--bs", "from": "8", "to": "4"}
    assert len(said["on_oom"]["then"]) == 2
    assert said["on_oom"]["resume"] == {"how": "unknown", "knob": None, "value": None, "from": None}
    refused = answer(job(Knobs()), plan)["on_oom"]
    assert refused["refused"] is True
    assert refused["why"]


def test_the_accumulation_that_follows_from_a_global_batch() -> None:
    knobs = Knobs(
        batch="--bs",
        batch_scope=KnobScope.PER_RANK,
        global_batch="--total",
        found=(FoundNumber("micro", 8, "default"), FoundNumber("total", 64, "default")),
    )
    lines = four_lines(job(knobs, BatchSpec(8, 4, 2)))
    assert lines[0] == "micro-batch 8 (--bs, default) · accumulation follows from --total 64 · × 2 ranks"
    auto = replace(knobs, found=(FoundNumber("total", None, "config"),))
    assert four_lines(job(auto, None))[0].startswith(
        "micro-batch not known · accumulation follows from --total auto"
    )


@pytest.mark.parametrize(
    ("spec", "lines"),
    [
        (
            job(),
            (
                "micro-batch 8 (--bs, command line) · accumulation 1 (--acc, default) · × 2 ranks",
                "--bs 8 → 4, --acc 1 → 2 (same global batch)",
                "--bs 4 → 2, --acc 2 → 4; --bs 2 → 1, --acc 4 → 8",
                "not known: a restart after the first step waits for you (--resume-knob, --self-resuming)",
            ),
        ),
        (
            job(
                replace(KNOBS, counts=AccumulationCounts.ALL_RANKS, resume="--resume", resume_value=""),
                BatchSpec(2, 1, 1),
            ),
            (
                "micro-batch 8 (--bs, command line) · accumulation 1 (--acc, of all ranks, default) · × 1 rank",
                "--bs 8 → 1, --acc 1 → 2 (same global batch)",
                "nothing smaller is left",
                "--resume",
            ),
        ),
        (
            job(replace(KNOBS, found=(), refusal="no", resume_path="--ckpt"), None, entry_args=()),
            (
                "micro-batch not known · × ranks",
                "nothing by itself: no",
                "-",
                "--ckpt PATH of the newest checkpoint",
            ),
        ),
        (
            job(replace(KNOBS, found=(), cannot_resume=True), BatchSpec(2, 1, 2), entry_args=()),
            (
                "micro-batch not known · × 2 ranks",
                "--bs unset → 1, --acc unset → 2 (same global batch)",
                "nothing smaller is left",
                "not at all: a restart begins at step 0",
            ),
        ),
    ],
)
def test_a_dry_run_in_four_lines(spec: JobSpec, lines: tuple[str, ...]) -> None:
    assert four_lines(spec) == lines


def test_the_ranks_of_the_whole_job() -> None:
    assert world_size(job()) == 2
    assert world_size(job(batch=None, world_size=8)) == 8
    assert world_size(job(batch=None)) is None


# -- batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"micro_batch": 4}, BatchSpec(4, 1, 2)),
        ({"micro_batch": 4, "accumulation": 3}, BatchSpec(4, 3, 2)),
        ({"global_batch": 16}, BatchSpec(8, 1, 2)),
        ({"global_batch": 16, "accumulation": 4}, BatchSpec(2, 4, 2)),
        ({"global_batch": 16, "micro_batch": 2}, BatchSpec(2, 4, 2)),
        ({"global_batch": 16, "micro_batch": 2, "accumulation": 4}, BatchSpec(2, 4, 2)),
        ({"micro_batch": 1, "accumulation": 1}, BatchSpec(1, 1, 2)),
    ],
)
def test_a_batch_is_completed(given: dict[str, Any], found: BatchSpec) -> None:
    assert resolve(world_size=2, **given) == found


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"micro_batch": 0}, "micro-batch 0 is not possible: it must be at least 1"),
        ({"micro_batch": 1, "accumulation": 0}, "accumulation 0 is not possible"),
        ({}, "no batch size is given"),
        ({"global_batch": 15}, r"15 is not divisible by 2 \(2 ranks\); global batch that works: 14, 16"),
        ({"global_batch": 1}, "global batch that works: 2$"),
        ({"global_batch": 15, "micro_batch": 4}, "global batch that works: 8, 16"),
        ({"global_batch": 16, "accumulation": 3}, "8 samples a rank, .* accumulation that works: 2, 1"),
        (
            {"global_batch": 16, "micro_batch": 3},
            "micro-batch 3 × 2 ranks = 6 does not divide .* works: 2, 1",
        ),
        (
            {"global_batch": 16, "micro_batch": 2, "accumulation": 3},
            "accumulation must be 4, or leave it out",
        ),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_what_does(given: dict[str, Any], why: str) -> None:
    with pytest.raises(JobError, match=why):
        resolve(world_size=2, **given)


def test_tokens_count_only_where_the_batch_is_in_tokens() -> None:
    tokens = resolve(world_size=2, global_batch=4096, unit=BatchUnit.TOKENS, tokens_per_sample=512)
    assert (tokens.micro_batch_per_rank, tokens.global_batch) == (4, 4096)
    assert resolve(world_size=2, global_batch=16, tokens_per_sample=512).micro_batch_per_rank == 8
    with pytest.raises(JobError, match=r"micro-batch 3 × 512 tokens × 2 ranks = 3072"):
        resolve(world_size=2, global_batch=4096, micro_batch=3, unit=BatchUnit.TOKENS, tokens_per_sample=512)
    with pytest.raises(JobError, match=r"1024 \(2 ranks × 512 tokens\)"):
        resolve(world_size=2, global_batch=5000, unit=BatchUnit.TOKENS, tokens_per_sample=512)


def test_smaller_batches() -> None:
    assert candidates(BatchSpec(6, 2, 1)) == (12, 6, 4, 3, 2, 1)
    assert candidates(BatchSpec(3, 3, 1)) == (9, 3, 1)
    assert without_numbers(BatchSpec(8, 5, 1), [5, 4, 2]) == 4
    assert without_numbers(BatchSpec(7, 2, 1), [2]) == 2
    point = MemoryPoint(8, 70, 10, 100, base_bytes=0)
    assert point.predicted_bytes(4) == 40
    assert MemoryPoint(8, 70, 10, 100, base_bytes=40).predicted_bytes(4) == 60
    assert MemoryPoint(8, 10, 10, 100, base_bytes=40).predicted_bytes(4) == 40
    for micro in (0, 3):
        with pytest.raises(JobError, match="does not divide the 8 samples"):
            with_micro_batch(BatchSpec(8, 1, 1), micro)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (
            BatchSpec(16, 2, 2),
            BatchSpec(8, 4, 2),
            "micro-batch 16 → 8, accumulation 2 → 4, global batch 64 unchanged",
        ),
        (
            BatchSpec(16, 2, 2),
            BatchSpec(8, 2, 2),
            "micro-batch 16 → 8, accumulation 2 unchanged, global batch 64 → 32",
        ),
        (
            BatchSpec(4, 3, 4),
            BatchSpec(4, 4, 3),
            "micro-batch 4 unchanged, accumulation 3 → 4, ranks 4 → 3, global batch 48 unchanged",
        ),
        (
            BatchSpec(2, 1, 1, BatchUnit.TOKENS, 512),
            BatchSpec(1, 2, 1, BatchUnit.TOKENS, 512),
            "micro-batch 2 → 1, accumulation 1 → 2, global batch 1024 tokens unchanged",
        ),
    ],
)
def test_a_change_in_one_line(before: BatchSpec, after: BatchSpec, text: str) -> None:
    assert describe_change(BatchChange(before, after)) == text


def test_a_batch_in_one_line() -> None:
    assert describe(BatchSpec(8, 4, 2)) == "8 × accumulation 4 × 2 ranks = global batch 64"
    assert describe(BatchSpec(8, 4, 1)) == "8 × accumulation 4 × 1 rank = global batch 32"
    tokens = BatchSpec(1, 1, 1, BatchUnit.TOKENS, 512)
    assert describe(tokens) == "1 × 512 tokens × accumulation 1 × 1 rank = global batch 512 tokens"


# -- places -----------------------------------------------------------------------------------------------------


def test_where_a_setting_is() -> None:
    names = ("--bs", "train.bs", "env:BS", "a/b.yaml#train.bs", "a.TOML#x", "a.txt#x", "#x")
    assert [place_of(name).value for name in names] == [
        "argument",
        "argument",
        "environment",
        "file",
        "file",
        "argument",
        "argument",
    ]
    assert [bare(name) for name in names[:4]] == ["--bs", "train.bs", "BS", "train.bs"]
    assert [is_argument(name) for name in names[:4]] == [True, True, False, False]
    places = Places(
        configs={"c.yaml": {"bs": 8}},
        env={"LR": "1"},
    )
    assert [places.value(name) for name in ("c.yaml#bs", "c.yaml#x", "d.yaml#bs")] == [8, None, None]
    assert [places.value(name) for name in ("env:LR", "env:BS", "model.bs", "--x")] == ["1", None, None, None]
    assert places.with_value("c.yaml#bs", "4").value("c.yaml#bs") == "4"
    assert places.with_value("d.yaml#bs", "4").value("d.yaml#bs") == "4"
    assert places.with_value("env:BS", "2").value("env:BS") == "2"


def test_an_answer_is_what_a_flag_would_declare() -> None:
    assert with_declared(Knobs(), Unread.SCOPE, "per_rank").batch_scope is KnobScope.PER_RANK
    given = Knobs(batch="--bs", accumulation="--acc")
    assert with_declared(given, Unread.MICRO, "--m") == replace(given, batch="--m")
    assert with_declared(given, Unread.ACCUMULATION, "--a") == replace(given, accumulation="--a")


@pytest.mark.parametrize(
    ("knobs", "batch", "total", "unit"),
    [
        (KNOBS, BATCH, 16, "samples"),
        (KNOBS, None, None, "samples"),
        (replace(KNOBS, found=(FoundNumber("total", 64, "default"),)), None, 64, "samples"),
        (replace(KNOBS, found=(FoundNumber("total", 64, "default"),)), BATCH, 16, "samples"),
        (replace(KNOBS, accumulation=None, global_batch="--total"), None, None, None),
        (replace(KNOBS, accumulation=None, global_batch="--total"), BATCH, 16, "samples"),
        (
            replace(KNOBS, accumulation=None, global_batch="--total"),
            replace(BATCH, ranks_known=False),
            None,
            None,
        ),
        (KNOBS, replace(BATCH, ranks_known=False), None, "samples"),
    ],
)
def test_the_global_batch_of_a_dry_run(
    knobs: Knobs, batch: BatchSpec | None, total: int | None, unit: str | None
) -> None:
    spec = job(knobs, batch)
    plan = build_plan(
        spec, attempt=1, interpreter="python", run_dir="/r", attempt_dir="/r/1", base_env={}, port=29500
    )
    shown = answer(spec, plan)["batch"]
    assert (shown["global"], shown["unit"]) == (total, unit)
