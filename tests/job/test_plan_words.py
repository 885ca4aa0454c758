"""A job's batch and what a memory failure would change, in words and as data: each form of a job once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.job.batch import (
    BatchSpec,
)
from supervisor.job.launch.oom_plan import four_lines
from supervisor.job.spec import AccumulationCounts, EntryKind, FoundNumber, JobSpec, Knobs, KnobScope

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


# -- places -----------------------------------------------------------------------------------------------------
