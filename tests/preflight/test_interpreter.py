"""What is asked of the target's interpreter: packages are never imported."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight import interpreter as module
from supervisor.preflight.interpreter import (
    Interpreter,
    commit_of,
    find_interpreter,
    installed_version,
    interpreter_of,
)
from tests.preflight.test_checks import fake_python


def test_the_version_of_a_package_is_read_without_importing_it(tmp_path: Path) -> None:
    version = installed_version(sys.executable, "pytest", os.environ)
    assert version == pytest.__version__
    (tmp_path / "checked_out.py").write_text('__version__ = "5.0.0.dev0"\nraise SystemExit("imported")\n')
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert installed_version(sys.executable, "checked_out", variables) == "5.0.0.dev0"
    assert installed_version(sys.executable, "no_such_package", os.environ) is None
    assert installed_version(str(tmp_path / "no_python"), "pytest", os.environ) is None


def test_torch_is_found_by_its_files_and_never_imported(tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise SystemExit('imported')\n")
    spec, env = (
        JobSpec("x", EntryKind.SCRIPT, "train.py", python=sys.executable),
        {"PYTHONPATH": str(tmp_path)},
    )
    why = f"--python {sys.executable}"
    bare = Interpreter(sys.executable, platform.python_version(), "unknown", why)
    assert find_interpreter(spec, env) == bare
    for text, version, cuda, hip in (
        ("__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "2.9.0+cu128", "12.8", None),
        ("__version__ = '2.9.0+rocm6.4'\ncuda = None\nhip = '6.4'\ndebug = False\n", "2.9.0+rocm6.4", None, "6.4"),
    ):  # fmt: skip
        (torch / "version.py").write_text(text)
        found = replace(bare, torch_version=version, torch_cuda=cuda, torch_hip=hip)
        assert find_interpreter(spec, env) == found


def test_a_commands_own_interpreter(tmp_path: Path) -> None:
    def of(entry: str, first: str = "", python: str | None = None) -> str:
        if first:
            (tmp_path / entry).write_text(f"{first}\nimport train\n")
            (tmp_path / entry).chmod(0o755)
        spec = JobSpec("x", EntryKind.COMMAND, entry, cwd=str(tmp_path), python=python)
        return interpreter_of(spec, "/otherwise", {"PATH": str(tmp_path)})

    assert of("accelerate", f"#!{sys.executable}") == sys.executable
    assert of("./accelerate") == sys.executable
    assert of("accelerate", python="/named/python") == "/otherwise"
    assert of(sys.executable) == sys.executable
    assert of("python3.12", "#!/bin/sh") == str(tmp_path / "python3.12")
    for first in ("#!/usr/bin/env python", "#!/bin/sh", f"{sys.executable}", f"  {sys.executable}"):
        assert of("launch", first) == "/otherwise"
    assert of("no-such-program") == "/otherwise"
    script = JobSpec("x", EntryKind.SCRIPT, "accelerate", cwd=str(tmp_path))
    assert interpreter_of(script, "/otherwise", {"PATH": str(tmp_path)}) == "/otherwise"


def test_an_interpreter_is_named_by_its_path_or_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path(fake_python(tmp_path / "bin", "true"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    env = {"PATH": str(made.parent)}
    assert module._bound_path(made.name, env) == str(made)
    assert module._bound_path(f"./bin/{made.name}", {}) == str(made)
    assert module._bound_path(f"~/bin/{made.name}", {}) == str(made)
    assert module._bound_path("no-such-python", env) == "no-such-python"


def test_the_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert commit_of(str(tmp_path)) is None
    assert commit_of(str(tmp_path / "none")) is None
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(tmp_path)]
    (tmp_path / "train.py").write_text("pass\n")
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run([*git, "tag", "-a", "-m", "One", "v1"], check=True)
    whole = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert commit_of(str(tmp_path)) == whole[:12]
    (tmp_path / "train.py").write_text("print()\n")
    assert commit_of(str(tmp_path)) == f"{whole[:12]}+"
