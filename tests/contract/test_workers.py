"""tests/conftest.py where tests run at the same time: a leak fails the test that made it, and no other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests import conftest

TESTS = """
import os, subprocess, sys, threading, time
from pathlib import Path

HERE = Path(__file__).parent

def met(mine, theirs):
    (HERE / mine).touch()
    end = time.monotonic() + 60
    while not (HERE / theirs).exists():
        assert time.monotonic() < end
        time.sleep(0.01)

def test_that_leaks():
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    met("leaks", "clean")

def test_that_is_clean():
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    try:
        met("clean", "leaks")  # both have a child now, each in a worker of its own
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    assert not {"COLUMNS", "LINES"} & set(os.environ)
"""


def test_a_leak_fails_its_own_test_alone(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        Path(conftest.__file__).read_text(encoding="utf-8"), encoding="utf-8"
    )
    (tmp_path / "test_both.py").write_text(TESTS, encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # The conftest is this checkout's, which need not be what is installed.
    env["PYTHONPATH"] = str(Path(conftest.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=tmp_path, env={**env, "COLUMNS": "80", "LINES": "24"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert re.search(r"^2 passed, 1 error in", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert re.findall(r"^ERROR \S+::(\w+)", done.stdout, re.MULTILINE) == ["test_that_leaks"]
    assert "processes left behind" in done.stdout
