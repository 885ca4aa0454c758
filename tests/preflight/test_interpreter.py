"""What is asked of the target's interpreter: packages are never imported."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.job.spec import EntryKind, JobSpec
from supervisor.preflight import interpreter as module
from supervisor.preflight.interpreter import begin_to_ask, find_interpreter, installed_version, interpreter_of
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


ANSWER = """echo asked >> "$ASKED"; echo '{"python": "3.12.4", "torch": "2.4.1"}'"""


def test_an_interpreter_that_was_asked_early_is_not_asked_again(tmp_path: Path) -> None:
    """Asking takes from 20 ms to seconds: `stoker run` begins before it reads the script."""
    named = fake_python(tmp_path / "a", ANSWER)
    asked = tmp_path / "asked"
    variables = {**os.environ, "ASKED": str(asked)}
    spec = JobSpec("x", EntryKind.SCRIPT, "train.py", cwd=str(tmp_path), python=named)
    early = begin_to_ask(spec, variables)
    assert early is not None
    assert early.path == named
    found = find_interpreter(spec, variables, early)
    assert (found.version, found.torch_version) == ("3.12.4", "2.4.1")
    assert asked.read_text() == "asked\n"
    assert find_interpreter(spec, variables) == found
    assert asked.read_text() == "asked\nasked\n"


def test_the_place_that_is_looked_at_first_is_asked_early(tmp_path: Path) -> None:
    named = fake_python(tmp_path / "bin", ANSWER)
    variables = {**os.environ, "ASKED": str(tmp_path / "asked"), "VIRTUAL_ENV": str(tmp_path)}
    spec = JobSpec("x", EntryKind.SCRIPT, "train.py", cwd=str(tmp_path))
    early = begin_to_ask(spec, variables)
    assert early is not None
    assert early.path == named
    assert find_interpreter(spec, variables, early).why == "$VIRTUAL_ENV"
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_an_answer_of_another_interpreter_is_not_taken(tmp_path: Path) -> None:
    variables = {**os.environ, "ASKED": str(tmp_path / "asked")}
    other = fake_python(tmp_path / "other", 'echo \'{"python": "3.9.1", "torch": null}\'')
    named = fake_python(tmp_path / "a", ANSWER)
    spec = JobSpec("x", EntryKind.SCRIPT, "train.py", cwd=str(tmp_path), python=other)
    early = begin_to_ask(spec, variables)
    found = find_interpreter(replace(spec, python=named), variables, early)
    assert found.version == "3.12.4"
    assert early is not None
    early.process.communicate()


def test_an_interpreter_that_does_not_start_is_not_asked_early(tmp_path: Path) -> None:
    spec = JobSpec("x", EntryKind.SCRIPT, "train.py", cwd=str(tmp_path), python=str(tmp_path / "nope"))
    assert begin_to_ask(spec, os.environ) is None
    (tmp_path / "text").write_text("no program")
    assert begin_to_ask(replace(spec, python=str(tmp_path / "text")), os.environ) is None


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
