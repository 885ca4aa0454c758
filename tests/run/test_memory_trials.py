"""What fitted before: kept for later runs of the same kind of job, and for no other."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from supervisor.job.memory_fit import Measure, MemoryTrial
from supervisor.run.answers import (
    MEMORY_FILE,
    JobKind,
    MemoryLine,
    flags_hash,
    recall_memory,
    remember_memory,
)

KIND = JobKind("train.py", flags_hash(["--depth", "12"]), "H100", 8)
TRIAL = MemoryTrial(8, True, 10 << 30, 80 << 30, Measure.ALLOCATOR)


def line(run: str = "r1", kind: JobKind = KIND) -> MemoryLine:
    return MemoryLine(kind=kind, trial=TRIAL, t=1.0, run=run)


def test_lines_of_the_same_kind_of_job_are_recalled_oldest_first(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    assert recall_memory(KIND, env) == []
    kinds = [
        KIND,
        replace(KIND, script="other.py"),
        replace(KIND, device="A100"),
        replace(KIND, world_size=4),
        replace(KIND, flags=flags_hash(["--depth", "13"])),
    ]
    for number, kind in enumerate(kinds):
        remember_memory(line(f"r{number}", kind), env)
    remember_memory(line("r9"), env)
    assert recall_memory(KIND, env) == [line("r0"), line("r9")]
    assert recall_memory(KIND, env, but_run="r0") == [line("r9")]


def test_the_file_is_the_users_alone_and_holds_no_words_of_the_command_line(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    remember_memory(replace(line(), kind=replace(KIND, flags=flags_hash(["--token", "s3cret"]))), env)
    (path,) = tmp_path.rglob(MEMORY_FILE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"s3cret" not in path.read_bytes()
