"""A user's own signatures: what they decide in `stoker diagnose`, and in a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cli.conftest import Call

ROOT = Path(__file__).parents[2]
STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
TABLE = """
[[signature]]
id = "sim-diverged"
regex = 'simulator diverged at t=\\d+'
name = "The simulator diverged"
start = "after_first_step"
recurs = "yes"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "stoker.toml").write_text(TABLE)
    (tmp_path / "train.log").write_text(STEPS + "simulator diverged at t=41\nsimulator diverged at t=42\n")
    return tmp_path


def test_they_decide_the_verdict(folder: Path, call: Call) -> None:
    code, out, _ = call("diagnose --json --explain train.log")
    found = json.loads(out)
    assert (code, found["title"]) == (10, "The simulator diverged")
    assert found["explanation"]["candidates"][0]["signature"] == "own-sim-diverged"
    assert "by your signature sim-diverged" in call("diagnose --lang en train.log").out


@pytest.mark.parametrize("page", ["README.md", "configs/README.md"])
def test_the_examples_of_the_pages_work(page: str, folder: Path, call: Call) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```toml\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    (example,) = (textwrap.dedent(block) for _, block in blocks if "[[signature]]" in block)
    (folder / "stoker.toml").write_text(example)
    code, out, _ = call("diagnose --lang en train.log")
    assert (code, "The simulator diverged" in out) == (10, True)


def test_what_matches_when_it_is_not_expected_does_not_count(folder: Path, call: Call) -> None:
    (folder / "early.log").write_text("simulator diverged at t=0\n" + STEPS)
    assert "sim-diverged" not in call("diagnose --explain --lang en early.log").out


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("id = 'a'\nregex = 'x'", "needs a class"),
        ("retries = = 3", "TOML"),
        ("id = 'a'\nregex = '(x'\nname = 'n'", "not a valid regular expression"),
        ("id = 'a'\nregex = 'x(?=y)'\nname = 'n'", "looks around"),
        ("id = 'a'\nregex = 'x'\nname = 'n'\nrolle = 'cause'", "did you mean 'signature.role'?"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_named_with_its_line(
    table: str, complaint: str, folder: Path, call: Call
) -> None:
    (folder / "stoker.toml").write_text("[[signature]]\n" + table + "\n")
    (folder / "train.log").write_text(STEPS)
    code, _, error = call("diagnose --json train.log")
    assert code == 0, "it costs the signatures, and no verdict"
    assert "your signatures are left out" in error
    assert complaint in error
    assert "stoker.toml" in error
    assert len([line for line in error.splitlines() if "read so far" not in line]) == 1


def test_a_run_is_restarted_once_where_it_says_so(folder: Path) -> None:
    (folder / "stoker.toml").write_text(TABLE.replace('"yes"', '"no"') + "[policy.code_error]\ndelay_s = 0\n")
    (folder / "train.py").write_text(
        "import sys, time\n"
        "for step in range(1, 4):\n    print(f'step {step} loss {2 - step / 10}', flush=True)\n"
        "time.sleep(0.5)\n"
        "print('simulator diverged at t=41', file=sys.stderr, flush=True)\nsys.exit(3)\n"
    )
    command = [sys.executable, "-m", "supervisor", "run", "--no-ui", "--restart-from-scratch", "--runs-dir", "runs", "train.py"]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)
    journal = next((folder / "runs").glob("*-*-*/nodes/0/events.jsonl")).read_text()
    facts = [json.loads(line) for line in journal.splitlines()]
    verdicts = [fact for fact in facts if fact["kind"] == "diagnosed" and not fact.get("provisional")]
    assert [fact["verdict"]["signature"] for fact in verdicts] == ["sim-diverged"] * 2, done.stdout


def test_nothing_of_a_table_or_a_log_acts_on_the_terminal_or_shows_a_secret(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "hunter2hunter2zz")
    (folder / "stoker.toml").write_text(TABLE.replace("The simulator", r"\u001b]0;PWNED\u0007\u001b[2J It"))
    (folder / "train.log").write_text(STEPS + "simulator diverged at t=41 hunter2hunter2zz\n")
    shown = call("diagnose --explain --lang en train.log").out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "hunter2" not in shown
