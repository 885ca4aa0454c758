"""How a script resumes is asked at a start on a terminal: once, and only where it matters and nothing says it."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from supervisor.cli.job_inputs import load_job, parse_words, with_asked_resume
from supervisor.job.spec import Knobs

PLAIN = "import torch\nfor step in range(3):\n    torch.save(step, 'x.bin')\n"
OPTION = ("--restore-state", "x.bin")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PLAIN)
    return tmp_path


def started(folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str, *words: str) -> Knobs:
    """The knobs of a start at whose question `typed` is typed; whoever is asked nothing reads none of it."""
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    monkeypatch.chdir(folder)
    parsed = parse_words(words or ("train.py", *OPTION), env)
    return with_asked_resume(load_job(parsed, env, folder), parsed, env).knobs


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("s\n", ("self_resuming", True)),
        ("n\n", ("cannot_resume", True)),
        ("--load=PATH\n", ("resume_path", "--load")),
        ("--go-on\n", ("resume", "--go-on")),
        ("train.resume=true\n", ("resume", "train.resume")),
        ("--resume=latest\n", ("resume_value", "latest")),
    ],
)
def test_an_answer_holds_for_this_start_and_for_later_ones(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    expected: tuple[str, object],
) -> None:
    name, value = expected
    assert getattr(started(folder, monkeypatch, typed), name) == value
    assert "train.py: how does it resume" in capsys.readouterr().out
    assert getattr(started(folder, monkeypatch, ""), name) == value
    (folder / "train.py").write_text(PLAIN + "# edited\n")
    assert getattr(started(folder, monkeypatch, typed), name) == getattr(Knobs(), name), "of another text"
    assert capsys.readouterr().out == "", "asked once, also of an edited script"


@pytest.mark.parametrize("typed", ["\n", "", "how?\n", "--x=$(reboot)\n", "PATH\n"])
def test_what_is_no_answer_leaves_it_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    assert started(folder, monkeypatch, typed).start is None
    out = capsys.readouterr().out
    assert ("left open" in out) is bool(typed.strip())
    assert not started(folder, monkeypatch, "s\n").self_resuming
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "asks"),
    [((), False), (OPTION, True), (("--checkpoint-every", "10"), False), (("--lr", "0.1"), False)],
)
def test_who_may_load_a_checkpoint_is_asked(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    asks: bool,
) -> None:
    assert started(folder, monkeypatch, "s\n", "train.py", *words).self_resuming is asks
    assert ("how does it resume" in capsys.readouterr().out) is asks


@pytest.mark.parametrize(
    "words",
    [
        ("--no-retry", "train.py"),
        ("--max-retries", "0", "train.py"),
        ("--detach", "train.py"),
        ("--json", "--no-ui", "train.py"),
        ("--trial", "train.py"),
        ("--dry-run", "train.py"),
        ("--restart-from-scratch", "train.py"),
        ("--self-resuming", "train.py"),
        ("--resume-knob", "--load=PATH", "train.py"),
        ("--", "sleep", "1"),
        ("--config", "demo/demo"),
    ],
    ids=" ".join,
)
def test_nobody_is_asked_to_whom_it_does_not_matter(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    started(folder, monkeypatch, "s\n", *words, *(OPTION if "train.py" in words else ()))
    assert capsys.readouterr().out == ""
    assert sys.stdin.read() == "s\n"
