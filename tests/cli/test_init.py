"""`stoker init`: from a script to a job file by questions or flags; nothing is overwritten, and no secret is written."""

from __future__ import annotations

import io
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pexpect
import pytest

from supervisor.cli import run
from supervisor.cli.main import main
from tests.cli.conftest import Answer, Call
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


def test_nothing_is_asked_with_yes(folder: Path, call: Call) -> None:
    assert call("init --yes") == Answer(
        0, "train.toml is written; to start it:\n  stoker run --config train.toml\n", ""
    )
    assert written(folder) == {"run": {"script": "train.py", "nproc_per_node": 1, "nnodes": 1}}
    tried = call(f"run --python {sys.executable} --config train.toml --dry-run")
    assert (tried.code, "# out of memory: known after the first step" in tried.out) == (0, True)


KNOWN = """\
known so far:
  batch          micro-batch 4 (--micro_batch_size, command line) · accumulation 2 (--grad_accum, command line) · × 2 ranks
  out of memory  --micro_batch_size 4 → 2, --grad_accum 2 → 4 (same global batch)
  then           --micro_batch_size 2 → 1, --grad_accum 4 → 8
  resume         {}
  checkpoints    looked for in lightning_logs, checkpoints, outputs, output, trainer_output, runs
"""
ASKED = """\
· no GPU is visible here: ranks run on the CPU
· torch {torch} in {python}
? which script trains?
  1  train.py
  2  more/train_b.py
  [train.py] > ? what follows train.py on its command line?
  > ? how many ranks on each machine (one for each GPU)?
  [1] > {before}? how many machines?
  [1] > ? how does the script continue from a checkpoint? (or name its flag, as --resume=auto)
  1  wait  a failure after the first step waits for you
  2  scratch  it begins at step 0 again
  3  self  the script finds its newest checkpoint itself
  [wait] > {after}? write the job file as?
  [train.toml] > mine.toml is written; to start it:
  stoker run --config mine.toml
"""


def test_answers_from_a_pipe(folder: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    python = Path(sys.executable).with_name("python3")
    monkeypatch.setenv("PATH", str(python.parent))
    for name in ("more/train_b.py", "tests/train_c.py", ".hidden/train_d.py"):
        (folder / name).parent.mkdir()
        (folder / name).write_text(SCRIPT, encoding="utf-8")
    lines(monkeypatch, "\n--micro_batch_size 4 --grad_accum 2\n2\n\n--resume=PATH\nmine.toml\n")
    unknown = "not known: a restart after the first step waits for you (--resume-knob, --self-resuming)"
    told = ASKED.format(
        torch=metadata.version("torch"),
        python=python,
        before=KNOWN.format(unknown),
        after=KNOWN.format("--resume PATH of the newest checkpoint"),
    )
    assert call("init") == Answer(0, told, "")
    args = ["--micro_batch_size", "4", "--grad_accum", "2"]
    job = written(folder, "mine.toml")
    assert job["run"] == {"script": "train.py", "args": args, "nproc_per_node": 2, "nnodes": 1}
    assert job["resume"] == {"knob": "--resume=PATH"}
    mask = os.umask(0)
    os.umask(mask)
    assert (folder / "mine.toml").stat().st_mode & 0o777 == 0o666 & ~mask


ENDED = "the input ended before an answer to “{}”; nothing is written: --yes takes what is proposed"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (b"", ENDED.format("which script trains?")),
        (b"1\n\n2", ENDED.format("how many machines?")),
        (b"nope.py\n", "nope.py: no such script: give the path of the .py file to run, or -m MODULE"),
        (b"1\n\xff\n", "the answer to “what follows train.py on its command line?” is no UTF-8 text; nothing is written"),
    ],
)  # fmt: skip
def test_a_bad_answer_is_one_line_and_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: Call, typed: bytes, told: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), "utf-8", "surrogateescape"))
    code, out, err = call("init")
    assert (code, err) == (2, f"stoker init: {told}\n")
    assert out.endswith("> " if typed == b"nope.py\n" else "> \n"), "the line on stderr begins a line"
    assert not list(folder.rglob("*.toml"))


def test_what_is_written_is_started_with_the_looks_that_it_was_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    several = "init --yes --nnodes 2 --master-addr n1"
    refused = "--start starts one machine's part: with several machines start each by the command"
    assert call(f"{several} --start train.py") == Answer(2, "", f"stoker init: {refused}\n")
    assert not list(folder.rglob("*.toml"))
    last = call(f"{several} train.py").out.splitlines()[-1]
    assert last == "on each machine, with K = 0 on the first, 1 on the next, …"
    started: list[list[str]] = []
    monkeypatch.setattr(run, "main", lambda words: started.append(words) or 7)  # type: ignore[func-returns-value]
    assert call("init --yes --start --theme light --lang en --ascii train.py").code == 7
    assert call("init --yes --start --out b.toml train.py").code == 7
    looks = ["--theme=light", "--lang=en", "--ascii"]
    assert started == [[*looks, "--config", "train-2.toml"], ["--config", "b.toml"]]


@pytest.mark.parametrize(
    ("typed", "code"), [("\n", 7), ("y\n", 7), (" YES \n", 7), ("n\n", 0), ("no\n", 0), ("", 0)]
)
def test_on_a_terminal_it_asks_whether_to_start(
    monkeypatch: pytest.MonkeyPatch, call: Call, typed: str, code: int
) -> None:
    monkeypatch.setattr(run, "main", lambda _: 7)
    lines(monkeypatch, "\n" * 6 + typed)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert call("init").code == code


def test_its_help_names_its_flags(call: Call) -> None:
    code, out, err = call("init --help")
    assert (code, err, out[:40]) == (0, "", "usage: stoker init [flags] [SCRIPT.py [t")
    flags = " ".join(re.findall(r"^  (--\w+)", out, re.MULTILINE))
    assert flags == "--out --yes --start --theme --ascii --lang"


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
        child.expect(r"\? start it now\? \[Y/n\] ")
        child.sendline("n")
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == 0
    assert written(folder)["run"]
