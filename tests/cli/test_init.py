"""`stoker init`: from a script to a job file by questions or flags; nothing is overwritten, and no secret is written."""

from __future__ import annotations

import io
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from supervisor.cli.main import main
from tests.cli.conftest import Call
from tests.integration.harness import ROOT, STOKER

SCRIPT = "import argparse\nfor batch in DataLoader(data):\n    loss.backward()\n    optimizer.step()\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    yield tmp_path
    assert not list(tmp_path.glob(".stoker-*")), "a part of a file is left"


def written(folder: Path, name: str = "train.toml") -> dict[str, object]:
    return tomllib.loads((folder / name).read_text(encoding="utf-8"))


def lines(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_nothing_is_asked_with_yes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--yes"]) == 0
    assert written(folder) == {"run": {"script": "train.py", "nproc_per_node": 1, "nnodes": 1}}
    assert "stoker run --config train.toml" in capsys.readouterr().out
    assert main(["run", "--python", sys.executable, "--config", "train.toml", "--dry-run"]) == 0
    assert "# out of memory: known after the first step" in capsys.readouterr().out


def test_answers_from_a_pipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines(monkeypatch, "\n--micro_batch_size 4 --grad_accum 2\n2\n\n--resume=PATH\nmine.toml\n")
    assert main(["init"]) == 0
    args = ["--micro_batch_size", "4", "--grad_accum", "2"]
    run = written(folder, "mine.toml")
    assert run["run"] == {"script": "train.py", "args": args, "nproc_per_node": 2, "nnodes": 1}
    assert run["resume"] == {"knob": "--resume=PATH"}
    out = capsys.readouterr().out
    assert "--micro_batch_size 4 → 2, --grad_accum 2 → 4" in out
    assert "--resume PATH of the newest checkpoint" in out


@pytest.mark.parametrize(("typed", "told"), [("", "the input ended"), ("nope.py\n", "nope.py")])
def test_a_bad_answer_is_one_line_and_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: Call, typed: str, told: str
) -> None:
    lines(monkeypatch, typed)
    code, _, err = call("init")
    assert (code, len(err.splitlines()), told in err) == (2, 1, True)
    assert not list(folder.rglob("*.toml"))


def test_an_interpreter_without_torch_is_refused_where_it_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    assert main(["init", "--yes", "--python", str(bare), "train.py"]) == 2
    assert "no torch" in capsys.readouterr().err
    assert not list(folder.glob("*.toml"))
    assert main(["init", "--yes", "--python", sys.executable, "train.py"]) == 0


def test_a_folder_of_hostile_names_and_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").unlink()
    (folder / "\x1b]0;train\x07.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "train_'$(touch hacked)'.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "broken.py").write_bytes(b"\xff\xfe\0 backward(" * 1000)
    os.mkfifo(folder / "pipe_train.py")
    (folder / "loop").symlink_to(folder)
    assert main(["init", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    (made,) = folder.glob("*.toml")
    assert written(folder, made.name)["run"] == {
        "script": "train_'$(touch hacked)'.py",
        "nproc_per_node": 1,
        "nnodes": 1,
    }


@pytest.mark.parametrize("words", [["init", "--yes"], ["run", "--dry-run", "train.py"]])
def test_looking_runs_nothing_of_the_folder(folder: Path, words: list[str]) -> None:
    """`python -c` looks for modules in the present folder first."""
    for name in ("json", "importlib", "os", "torch", "sitecustomize", "argparse", "io"):
        (folder / f"{name}.py").write_text(f"open('{folder}/ran', 'w')\n", encoding="utf-8")
    main(words)
    assert not (folder / "ran").exists()


def test_a_folder_without_a_script_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").unlink()
    assert main(["init", "--yes"]) == 2
    assert "name the script" in capsys.readouterr().err


def test_no_file_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train.toml", "broken.toml"):
        (folder / name).symlink_to("away")
    assert main(["init", "--yes", "--out", "broken.toml"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["init", "--yes"]) == 0
    assert (folder / "train-2.toml").is_file()
    assert not (folder / "away").exists()


def test_a_wrong_answer_on_a_terminal_is_asked_again(folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = pexpect.spawn(STOKER[0], [*STOKER[1:], "init"], cwd=folder, env=env, encoding="utf-8")
    try:
        child.expect("which script trains")
        child.sendline("9")
        child.expect("choose one of 1 to 1")
        child.expect("which script trains")
        topics = (
            "what follows train.py",
            "how many ranks",
            "how many machines",
            "how does the script",
            "write the job file",
        )
        for topic in topics:
            child.sendline("")
            child.expect(topic)
        child.sendline("")
        child.expect("start it now")
        child.sendline("n")
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == 0
    assert written(folder)["run"]
