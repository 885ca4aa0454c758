"""What earlier runs of the same kind say of a micro-batch."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.batch import BatchSpec
from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.job.spec import EntryKind, FitSettings, JobSpec, Knobs
from supervisor.preflight.context import CheckContext, note, ok, warn
from supervisor.preflight.target import check_memory, kind_of
from supervisor.run.answers import MemoryLine, flags_hash, remember_memory
from supervisor.run.records import Finding

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


def trial(env: dict[str, str], micro: int, *, fitted: bool) -> None:
    made = MemoryTrial(micro, fitted, 10 << 30, 80 << 30, Measure.ALLOCATOR)
    remember_memory(MemoryLine(kind=kind_of(JOB), trial=made, t=1.8e9, run="r"), env)


DAY = time.strftime("%Y-%m-%d", time.localtime(1.8e9))
FREE = ok("memory", "nothing on record speaks against micro-batch 8")


def failed(least: int, fix: str = "--fit-batch finds what fits") -> Finding:
    what = f"micro-batch {least} ran out of memory in an earlier run ({DAY}), this one asks for 8"
    return warn("memory", what, fix)


def larger(best: int) -> Finding:
    what = f"micro-batch {best} fitted in an earlier run, this one asks for 8"
    return note("memory", what, f"--micro-batch {best}")


@pytest.mark.parametrize(
    ("failures", "fits", "expected"),
    [
        ([4], [], [failed(4)]),
        ([16, 8], [], [failed(8)]),
        ([16], [], [FREE]),
        ([8], [4, 2, 16], [failed(8, "4 fitted: --micro-batch 4")]),
        ([], [16, 32], [larger(32)]),
        ([32], [16, 32], [larger(16)]),
        ([16], [16], [FREE]),
        ([], [8], [FREE]),
        ([], [24], [FREE]),  # the global batch does not divide by it
        ([], [], []),
    ],
)
def test_what_earlier_runs_say_of_a_micro_batch(
    env: dict[str, str], failures: list[int], fits: list[int], expected: list[Finding]
) -> None:
    for micro in (*failures, *fits):
        trial(env, micro, fitted=False) if micro in failures else None
        trial(env, micro, fitted=True) if micro in fits else None

    def found(job: JobSpec) -> list[Finding]:
        return list(check_memory(CheckContext(job, Path("runs"), env)))

    assert found(JOB) == expected
    assert found(replace(JOB, batch=None)) == []
    if expected == [larger(32)]:
        assert found(replace(JOB, fit=FitSettings())) == [FREE], "it is going to look for what fits"


def test_jobs_are_alike_but_for_settings_that_need_no_memory(tmp_path: Path) -> None:
    kind = kind_of(JOB)
    same = [
        ("--depth", "12", "--bs", "4"),
        ("--bs", "8", "--depth", "12"),
        ("--depth", "12", "--lr", "1", "--seed", "3", "--num_train_epochs=2", "--warmup_steps", "9"),
        ("--depth", "12", "--ckpt_dir", "a", "--wandb_project", "b", "--run_name=c", "--save_every", "5"),
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
    (tmp_path / "c.yaml").unlink()
    assert kind_of(replace(JOB, cwd=str(tmp_path), entry_args=("--config", "c.yaml"))).flags == flags_hash([])
    of_file = replace(JOB, cwd=str(tmp_path), knobs=Knobs(batch="c.yaml#bs"), entry_args=("--config=c.yaml",))
    (tmp_path / "c.yaml").write_text("bs: 12\n")
    assert kind_of(of_file).flags == flags_hash([]), "its batch is compared by itself"


@pytest.mark.parametrize(
    ("kind", "entry", "args", "script"),
    [
        (EntryKind.SCRIPT, "src/../train.py", ("a.py",), "{}/train.py"),
        (EntryKind.MODULE, "pkg.train", (), "{} pkg.train"),
        (EntryKind.TRAINER, "trainer", (), "trainer"),
        (EntryKind.COMMAND, "python", ("-u", "train.py", "x.json"), "python {}/train.py"),
        (EntryKind.COMMAND, "sh", ("a.py", "b.py", "c.py"), "sh {0}/a.py {0}/b.py"),
        (EntryKind.COMMAND, "my-train", ("fast",), "my-train {}"),
    ],
)
def test_a_kind_is_of_the_program_wherever_it_is_started(
    tmp_path: Path, kind: EntryKind, entry: str, args: tuple[str, ...], script: str
) -> None:
    job = replace(JOB, entry_kind=kind, entry=entry, entry_args=args, cwd=str(tmp_path), batch=None)
    found = kind_of(job)
    assert (found.script, found.world_size) == (script.format(tmp_path.resolve()), 2)
    assert kind_of(replace(job, batch=BatchSpec(8, 4, 4))).world_size == 4
    assert kind_of(replace(job, batch=BatchSpec(8, 1, 1, ranks_known=False))).world_size == 2
