from __future__ import annotations

import os
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.errors import JobError
from supervisor.job.spec import NAMED_UNSEEN, EntryKind, JobSpec
from supervisor.preflight import host, target
from supervisor.preflight.checks import BEFORE, refused, run_checks
from supervisor.preflight.context import Check, CheckContext
from supervisor.preflight.interpreter import find_interpreter
from supervisor.run.records import Finding, FindingLevel

SCRIPT = JobSpec("t", EntryKind.SCRIPT, "train.py", nproc_per_node=1)
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - stands in for shutil's own named tuple


def found_by(check: Check, spec: JobSpec, folder: Path) -> Finding:
    (finding,) = check(CheckContext(spec, folder / "runs", {}))
    return finding


def found_before(spec: JobSpec, runs: Path) -> list[Finding]:
    return run_checks(BEFORE, CheckContext(spec, runs, {}))


def test_a_run_folder_that_cannot_be_made_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    spec = replace(SCRIPT, cwd=str(tmp_path))
    below_a_file = found_before(spec, tmp_path / "file" / "runs")
    assert [f.check for f in refused(below_a_file)] == ["run folder"]
    monkeypatch.setattr(os, "access", lambda *_a, **_k: False)  # root may write anywhere
    assert [f.check for f in refused(found_before(spec, tmp_path / "a" / "b"))] == ["run folder"]
    monkeypatch.undo()
    assert not refused(found_before(spec, tmp_path / "a" / "b"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_syntax_is_a_warning_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\ndef f(:\n")
    finding = found_by(target.check_script, replace(SCRIPT, cwd=str(tmp_path)), tmp_path)
    assert finding.level is FindingLevel.WARNING
    assert finding.what.startswith("train.py:2:")
    (tmp_path / "train.py").write_text("raise SystemExit('ran')\n")
    finding = found_by(target.check_script, replace(SCRIPT, cwd=str(tmp_path)), tmp_path)
    assert finding.level is FindingLevel.OK


@pytest.mark.parametrize(
    ("ranks", "workers", "wanted"),
    [(1, None, 2**29), (1, 8, 2**29), (2, 8, 2 * 8 * 2 * 32 * 2**20), (8, 4, 2 * 2**30)],
)
def test_shared_memory_for_two_batches_a_worker_is_enough(
    ranks: int, workers: int | None, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = () if workers is None else ("--num_workers", str(workers))
    spec = replace(SCRIPT, nproc_per_node=ranks, entry_args=args)
    for free, level in ((wanted, FindingLevel.OK), (wanted - 1, FindingLevel.WARNING)):
        usage = Usage(2**40, 2**40 - free, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _path, usage=usage: usage)
        assert found_by(host.check_shm, spec, tmp_path).level is level


def fake_python(folder: Path, answer: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


HAS_TORCH = """echo '{"python": "3.11.2", "torch": "2.13.0"}'"""
NO_TORCH = """echo '{"python": "3.11.2", "torch": null}'"""


def test_the_first_place_with_torch_wins(tmp_path: Path) -> None:
    bare = fake_python(tmp_path / "venv" / "bin", NO_TORCH)
    conda = fake_python(tmp_path / "conda" / "bin", HAS_TORCH)
    env = {"VIRTUAL_ENV": str(tmp_path / "venv"), "CONDA_PREFIX": str(tmp_path / "conda"), "PATH": "/nowhere"}
    found = find_interpreter(SCRIPT, env)
    assert (found.path, found.torch_version, found.version) == (conda, "2.13.0", "3.11.2")
    assert found.why == "$CONDA_PREFIX"
    fake_python(tmp_path / "venv" / "bin", HAS_TORCH)
    assert find_interpreter(SCRIPT, env).path == bare


def test_python_flag_binds(tmp_path: Path) -> None:
    bare = fake_python(tmp_path, NO_TORCH)
    with pytest.raises(JobError, match="no torch"):
        find_interpreter(replace(SCRIPT, python=bare), {})
    assert (
        find_interpreter(replace(SCRIPT, python=bare, entry_kind=EntryKind.COMMAND), {}).torch_version is None
    )
    with pytest.raises(JobError, match="no such"):
        find_interpreter(replace(SCRIPT, python=str(tmp_path / "nope")), {})
    with pytest.raises(JobError, match="does not run"):
        find_interpreter(replace(SCRIPT, python=fake_python(tmp_path / "b", "exit 3")), {})
    with pytest.raises(JobError, match="does not run"):
        find_interpreter(replace(SCRIPT, python=fake_python(tmp_path / "c", "echo '[1]'")), {})


def test_a_script_that_no_resume_is_known_of_is_told_how_to_declare_one(tmp_path: Path) -> None:
    found = found_by(target.check_knobs, SCRIPT, tmp_path)
    assert found.level is FindingLevel.WARNING
    assert "no resume flag is known" in found.what
    assert "--resume-knob FLAG=PATH (PATH: the newest complete checkpoint" in found.fix
    by_path = replace(SCRIPT, knobs=replace(SCRIPT.knobs, resume_path="--resume"))
    unmeasured = replace(by_path, instrument=False)
    (missing, found) = target.check_knobs(CheckContext(unmeasured, tmp_path / "runs", {}))
    assert missing.level is FindingLevel.WARNING
    assert "resume" not in missing.what, "the batch is another matter"
    assert "--resume-knob '--resume=DIR/FILE'" in found.fix
    assert found.level is FindingLevel.INFO, "nothing is wrong"
    assert found_by(target.check_knobs, by_path, tmp_path) == found, "the batch is measured"
    assert "restarts with --resume and the newest complete checkpoint that it finds" in found.what
    assert "Nothing to do if the script saves checkpoints" in found.what
    by_word = replace(SCRIPT.knobs, resume="--init_from", resume_value="resume", resumes="train.py:31")
    for knobs, wanted in (
        (by_word, "'--init_from=resume'"),
        (replace(by_word, resume="--resume", resume_value=""), "'--resume'"),
    ):
        *_, found = target.check_knobs(CheckContext(replace(SCRIPT, knobs=knobs), tmp_path / "runs", {}))
        assert f"--resume-knob {wanted} (used" in found.fix
    unseen = replace(SCRIPT.knobs, resume="--resume", resume_value="", resumes=NAMED_UNSEEN)
    found = found_by(target.check_knobs, replace(SCRIPT, knobs=unseen), tmp_path)
    assert "--resume is set without a value" in found.what
    assert "--resume-knob '--resume=PATH'" in found.fix
    scratch = replace(by_path, retry=replace(SCRIPT.retry, restart_from_scratch=True))
    found = found_by(target.check_knobs, scratch, tmp_path)
    assert not found.fix, "nothing is resumed"
