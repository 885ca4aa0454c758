"""What is asked of the target's interpreter: packages are never imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight import interpreter as module
from supervisor.preflight.interpreter import commit_of, installed_version, interpreter_of
from tests.preflight.test_checks import fake_python


def test_the_version_of_a_package_is_read_without_importing_it(tmp_path: Path) -> None:
    version = installed_version(sys.executable, "pytest", os.environ)
    assert version == pytest.__version__
    (tmp_path / "checked_out.py").write_text('__version__ = "5.0.0.dev0"\nraise SystemExit("imported")\n')
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert installed_version(sys.executable, "checked_out", variables) == "5.0.0.dev0"
    assert installed_version(sys.executable, "no_such_package", os.environ) is None
    assert installed_version(str(tmp_path / "no_python"), "pytest", os.environ) is None


def test_a_commands_own_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "accelerate"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)

    def of(entry: str) -> str:
        spec = JobSpec("x", EntryKind.COMMAND, entry, cwd=str(tmp_path))
        return interpreter_of(spec, "/otherwise", {"PATH": str(tmp_path)})

    assert of("accelerate") == sys.executable
    assert of(sys.executable) == sys.executable
    assert of("bash") == "/otherwise"
    assert of("no-such-program") == "/otherwise"


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
    assert re.fullmatch(r"[0-9a-f]{12}", commit_of(str(tmp_path)) or "")
    (tmp_path / "train.py").write_text("print()\n")
    assert (commit_of(str(tmp_path)) or "").endswith("+")
