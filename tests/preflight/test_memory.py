"""What earlier runs of the same kind say of a micro-batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.job.spec import EntryKind, JobSpec, Knobs
from supervisor.preflight.context import CheckContext
from supervisor.preflight.target import check_memory, kind_of
from supervisor.run.answers import MemoryLine, remember_memory
from supervisor.run.records import FindingLevel

JOB = JobSpec(
    "x",
    EntryKind.SCRIPT,
    "train.py",
    entry_args=("--depth", "12", "--bs", "8"),
    nproc_per_node=2,
    batch=BatchSpec(8, 4, 2),
    knobs=Knobs(batch="--bs"),
)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def trial(env: dict[str, str], micro: int, *, fitted: bool, job: JobSpec = JOB, t: float = 1.8e9) -> None:
    made = MemoryTrial(micro, fitted, 10 << 30, 80 << 30, Measure.ALLOCATOR)
    remember_memory(MemoryLine(kind=kind_of(job), trial=made, t=t, run="r"), env)


def found(env: dict[str, str], job: JobSpec = JOB) -> tuple[FindingLevel, str, str | None] | None:
    finding = next(check_memory(CheckContext(job, Path("runs"), env)), None)
    return (finding.level, finding.what, finding.fix) if finding is not None else None


@pytest.mark.parametrize(("failed", "warned"), [(4, True), (8, True), (16, False)])
def test_a_micro_batch_that_failed_before_or_a_larger_one_is_warned_of(
    env: dict[str, str], failed: int, warned: bool
) -> None:
    trial(env, failed, fitted=False)
    level, what, fix = found(env) or (None, "", None)
    assert level is (FindingLevel.WARNING if warned else FindingLevel.OK)
    if warned:
        assert what.startswith(f"micro-batch {failed} ran out of memory in an earlier run (2027-01-1")
        assert what.endswith("this one asks for 8")
        assert fix == "--fit-batch finds what fits"


def test_jobs_are_alike_but_for_settings_that_need_no_memory(tmp_path: Path) -> None:
    kind = kind_of(JOB)
    same = [
        ("--depth", "12", "--bs", "4"),
        ("--bs", "8", "--depth", "12"),
        ("--depth", "12", "--lr", "1", "--seed", "3"),
    ]
    assert all(kind_of(replace(JOB, entry_args=args)) == kind for args in same)
    assert kind_of(replace(JOB, entry_args=("--depth", "13", "--bs", "8"))) != kind
    assert kind_of(replace(JOB, entry="other.py")) != kind
    assert kind_of(replace(JOB, cwd=str(tmp_path))) != kind, "another train.py"
    for entry in (
        {"entry_kind": EntryKind.COMMAND, "entry": "torchrun", "entry_args": ("train.py",)},
        {"entry_kind": EntryKind.COMMAND, "entry": "my-train"},
        {"entry_kind": EntryKind.MODULE, "entry": "pkg.train"},
    ):
        elsewhere = replace(JOB, cwd=str(tmp_path), **entry)
        assert kind_of(elsewhere) != kind_of(replace(JOB, **entry)), "another project's"
    assert kind_of(replace(JOB, batch=BatchSpec(8, 4, 4))) != kind
    assert kind_of(replace(JOB, batch=None, nproc_per_node=2)) == kind
    (tmp_path / "c.yaml").write_text("depth: 12\nseed: 1\n")
    one = kind_of(replace(JOB, cwd=str(tmp_path), entry_args=("--config", "c.yaml")))
    (tmp_path / "c.yaml").write_text("depth: 12\nseed: 2\n")
    assert kind_of(replace(JOB, cwd=str(tmp_path), entry_args=("--config", "c.yaml"))) == one
    (tmp_path / "c.yaml").write_text("depth: 13\nseed: 2\n")
    assert kind_of(replace(JOB, cwd=str(tmp_path), entry_args=("--config", "c.yaml"))) != one
    command = replace(
        JOB, entry_kind=EntryKind.COMMAND, entry="python", entry_args=("-u", "train.py", "--depth", "12")
    )
    assert kind_of(command).script == f"python {Path('train.py').resolve()}"
