"""Bad input is one line that says what and what to do, the right exit code, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from supervisor.cli.main import main

SCRIPT = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\n"


@dataclass(frozen=True)
class Case:
    """`argv`, the exit code, and words that the one line must hold."""

    argv: tuple[str, ...]
    code: int
    words: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)


CASES = {
    "unknown verb": Case(("atach",), 2, ("atach", "attach")),
    "a script for a verb": Case(("train.py",), 2, ("stoker run train.py",)),
    "missing script": Case(("run", "nope.py"), 2, ("nope.py",)),
    "a folder for a script": Case(("run", "folder"), 2, ("folder",)),
    "unknown flag": Case(("run", "--nproc-per-nod", "2", "train.py"), 2, ("--nproc-per-node",)),
    "unknown flag of another verb": Case(("runs", "--nummber", "2"), 2, ("--nummber", "--number")),
    "no ranks": Case(("run", "--nproc-per-node", "0", "train.py"), 2, ("--nproc-per-node", "0")),
    "a word for a number": Case(("run", "--max-retries", "many", "train.py"), 2, ("--max-retries", "many")),
    "a value that is missing": Case(("run", "--name"), 2, ("--name",)),
    "nothing after --": Case(("run", "--"), 2, ("--",)),
    "a module that is missing": Case(("run", "-m"), 2, ("-m",)),
    "missing config": Case(("run", "--config", "nope.toml"), 2, ("nope.toml", "demo")),
    "a folder for a config": Case(("run", "--config", "folder"), 2, ("folder",)),
    "unreadable config": Case(("run", "--config", "bad.toml"), 2, ("bad.toml",), {"bad.toml": "a = = 1\n"}),
    "a config of bytes": Case(("run", "--config", "bad.yaml"), 2, ("bad.yaml",), {"bad.yaml": "a: [1\n"}),
    "a config that would have to be run": Case(
        ("run", "--config", "bad.py"), 2, ("bad.py",), {"bad.py": "import os\nlr = os.environ['LR']\n"}
    ),
    "unknown key": Case(
        ("run", "--config", "k.toml"), 2, ("learning_rat", "learning_rate"), {"k.toml": "learning_rat = 1\n"}
    ),
    "a batch that does not divide": Case(
        ("run", "--config", "b.toml", "--nproc-per-node", "2"),
        2,
        ("49152", "12"),
        {"b.toml": "device_batch_size = 16\ntotal_batch_size = 49152\nmax_seq_len = 2048\n"},
    ),
    "a batch that does not divide, dry": Case(
        ("run", "--dry-run", "--config", "b.toml", "--nproc-per-node", "2"),
        2,
        ("49152",),
        {"b.toml": "device_batch_size = 16\ntotal_batch_size = 49152\nmax_seq_len = 2048\n"},
    ),
    "an interpreter that is none": Case(("run", "--python", "/dev/null", "train.py"), 2, ("/dev/null",)),
    "a variable that is none": Case(("run", "--env", "1=2", "train.py"), 2, ("--env",)),
    "a variable without a value": Case(
        ("run", "--dry-run", "--env", "NAME", "train.py"), 2, ("wants KEY=VALUE, got 'NAME'",)
    ),
    "a token for a variable": Case(
        ("run", "--env", "ghp_R7kQ2mZx9LpT4vBn8YcW1sHd6JfA3gEu5oXi", "--", "true"), 2, ("got '<redacted>'",)
    ),
    "a token with a sign behind": Case(
        ("run", "--env", "hf-x=ghp_R7kQ2mZx9LpT4vBn8YcW1sHd6JfA3gEu5oXi", "--", "true"), 2, ("got 'hf-x='",)
    ),
    "a verb without end": Case(("w" * 100_000,), 2, (f"unknown verb '{'w' * 119}…{'w' * 78}':",)),
    "a flag without end": Case(("runs", "--" + "w" * 100_000), 2, ("…", "`stoker runs --help`")),
    "an argument that is no text": Case(("run", "train.py", "--data", "\udcff"), 2, ("UTF-8",)),
    "a run folder that cannot be": Case(
        ("run", "--python", sys.executable, "--runs-dir", "train.py/runs", "train.py"), 2, ("--runs-dir",)
    ),
    "unknown run": Case(("attach", "nope"), 2, ("nope", "stoker runs")),
    "unknown user's run": Case(("attach", "~nobody-here/run"), 2, ("~nobody-here",)),
    "no run at all": Case(("attach",), 2, ("stoker run",)),
    "a folder of nothing": Case(("attach", "--no-ui", "folder"), 2, ("folder",)),
    "a process of nobody": Case(("attach", "--no-ui", "999999999"), 2, ("999999999",)),
    "a digit that is none": Case(("attach", "--no-ui", "²"), 2, ("²",)),
    "an interval of nothing": Case(("attach", "--interval", "0"), 2, ("--interval",)),
    "an unknown run to stop": Case(("stop", "nope"), 2, ("nope",)),
    "a log to attach to that is missing": Case(("attach", "nope.log"), 2, ("nope.log", "no such file")),
    "nothing to say of policy": Case(("policy",), 2, ("stoker policy explain [RUN]",)),
    "an unknown run to draw": Case(("export", "--chart", "nope"), 2, ("nope",)),
    "a name too long for a file": Case(("attach", "x" * 5000), 2, ("too long",)),
    "nothing to diagnose": Case(("diagnose", "folder"), 2, ("folder",)),
    "a log that is missing": Case(("diagnose", "nope.log"), 2, ("nope.log",)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.fault(
    "hostile input", "bad arguments, files and folders", "one line, exit 2, nothing left behind"
)
def test_bad_input_is_one_line_and_leaves_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name, text in {"train.py": SCRIPT, **case.files}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    try:
        code = main(list(case.argv))
    except SystemExit as left:
        code = int(str(left.code))
    said = capsys.readouterr()
    assert code == case.code, said
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert len(said.err) < 1000
    assert "Traceback" not in said.err
    for word in case.words:
        assert word in said.err
    assert sorted(tmp_path.rglob("*")) == before
    state = Path(os.environ["XDG_STATE_HOME"])
    assert not [path for path in state.rglob("*") if path.is_file()]
    assert not list(state.glob("stoker/observed/*"))


@pytest.mark.parametrize("argv", [["--help"], ["-V"], [], ["runs"], ["run", "--help"]])
def test_help_and_empty_lists_are_no_errors(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 0
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.fault("hostile input", "the reader of a pipe leaves early (`| head`)", "no error, no traceback")
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    line = f"{sys.executable} -m supervisor --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_terminal_that_knows_few_letters_gets_escapes(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "supervisor", "--help"], capture_output=True, timeout=30, check=False, env=env,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"exit codes: 0 succeeded" in done.stdout
