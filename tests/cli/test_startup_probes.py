"""What is asked while stoker loads: each question once, its answer as without, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.errors import JobError
from supervisor.preflight import interpreter
from supervisor.preflight.interpreter import StartupProbes, find_interpreter
from tests.preflight.test_checks import HAS_TORCH, SCRIPT, fake_python

PATH = os.environ["PATH"]


def test_the_interpreter_is_asked_once(tmp_path: Path) -> None:
    python = fake_python(tmp_path, f"echo asked >> {tmp_path}/asked; {HAS_TORCH}")
    job = replace(SCRIPT, python=python, cwd=str(tmp_path))
    asked = StartupProbes(job, {"PATH": PATH}, commit=False)
    found = find_interpreter(job, {"PATH": PATH}, asked.interpreter)
    asked.close()
    assert (found.path, found.torch_version) == (python, "2.13.0")
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_one_that_hangs_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "ASK_TIMEOUT_S", 0.2)
    job = replace(SCRIPT, python=fake_python(tmp_path, "exec sleep 30"), cwd=str(tmp_path))
    asked = StartupProbes(job, {"PATH": PATH}, commit=False)
    assert asked.interpreter is not None
    with pytest.raises(JobError, match="does not run"):
        find_interpreter(job, {"PATH": PATH}, asked.interpreter)
    assert asked.interpreter.process.returncode is not None
    asked.close()


@pytest.mark.serial
def test_what_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    job = replace(SCRIPT, python=fake_python(tmp_path, "exec sleep 30"), cwd=str(tmp_path))
    asked = StartupProbes(job, {"PATH": PATH}, commit=True)
    began = time.monotonic()
    asked.close()
    assert time.monotonic() - began < 10
    assert asked.interpreter is not None
    assert asked.interpreter.process.returncode is not None


def test_what_cannot_be_asked_is_said_by_who_needs_it(tmp_path: Path) -> None:
    job = replace(SCRIPT, python=str(tmp_path / "none"), cwd=str(tmp_path))
    asked = StartupProbes(job, {"PATH": PATH}, commit=False)
    assert asked.interpreter is None
    with pytest.raises(JobError, match="no such interpreter"):
        find_interpreter(job, {"PATH": PATH}, asked.interpreter)
    asked.close()


def test_the_commit_and_whether_it_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = replace(SCRIPT, python=fake_python(tmp_path / "p", HAS_TORCH), cwd=str(tmp_path))

    def commit() -> str | None:
        asked = StartupProbes(job, {"PATH": PATH}, commit=True)
        try:
            return asked.commit()
        finally:
            asked.close()

    assert commit() is None
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(tmp_path)]
    (tmp_path / "train.py").write_text("pass\n")
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run([*git, *words], check=True)
    clean = commit()
    assert clean is not None
    assert len(clean) == 12
    (tmp_path / "train.py").write_text("print()\n")
    assert commit() == f"{clean}+"
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit() is None
    assert interpreter.GIT_TIMEOUT_S <= 3
