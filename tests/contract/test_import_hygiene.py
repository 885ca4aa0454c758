"""Walls that a static graph cannot see: what a verb really loads, looked at in a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch",
    "textual",
    "rich",
    "psutil",
    "pynvml",
    "watchdog",
    "msgspec",
    "plotext",
    "yaml",
    "hyperscan",
    "re2",
)


# What is wanted once a run continues or ends: 150 ms that each launch would wait for.
LATER = (
    "statistics",
    "zipfile",
    "psutil",
    "hyperscan",
    "watchdog",
    "supervisor.diagnosis.verdict",
    "supervisor.policy.health.early_signs",
    "supervisor.preflight.gpus",
    "supervisor.sources.checkpoint_layouts",
    "supervisor.sources.metrics",
    "supervisor.sources.stacks.python_stacks",
)


def loaded(code: str, tmp_path: Path, among: tuple[str, ...] = HEAVY) -> set[str]:
    """Names of modules, of those that are looked for, that running `code` loads."""
    report = (
        f"import json, sys\nprint(json.dumps([m for m in {among!r} if m in sys.modules]), file=sys.stderr)"
    )
    script = f"try:\n    exec({code!r})\nexcept SystemExit:\n    pass\n{report}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return set(json.loads(done.stderr.strip().splitlines()[-1]))


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nonsense"]])
def test_the_front_door_loads_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    assert loaded(f"from supervisor.cli.main import main; main({words!r})", tmp_path) == set()


def test_diagnose_loads_neither_the_app_nor_the_journal(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("step 1 loss 2.0\n", encoding="utf-8")
    found = loaded(f"from supervisor.cli.main import main; main(['diagnose', {str(log)!r}])", tmp_path)
    assert found <= {"hyperscan", "re2"}, found


def test_a_dry_run_loads_neither_torch_nor_the_app(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hi')\n", encoding="utf-8")
    words = ["run", "--dry-run", "--python", sys.executable, str(script)]
    found = loaded(f"from supervisor.cli.main import main; main({words!r})", tmp_path)
    assert not found & {"torch", "textual", "plotext", "pynvml"}, found


def test_a_start_loads_nothing_that_is_wanted_later(tmp_path: Path) -> None:
    words = "import supervisor.cli.start_run, supervisor.views.headless.console, supervisor.keeper.loop"
    assert loaded(words, tmp_path, LATER) == set()
    script = tmp_path / "train.py"
    script.write_text("print('hi')\n", encoding="utf-8")
    checks = (
        "import os, pathlib; from supervisor.job.spec import EntryKind, JobSpec; from supervisor.preflight.checks import BEFORE, run_checks; "
        "from supervisor.preflight.context import CheckContext; "
        f"spec = JobSpec('t', EntryKind.SCRIPT, 'train.py', cwd={str(tmp_path)!r}); "
        "run_checks(BEFORE, CheckContext(spec, pathlib.Path('runs'), dict(os.environ)))"
    )
    assert loaded(checks, tmp_path, LATER) == set()


def test_the_keeper_never_loads_torch_or_textual(tmp_path: Path) -> None:
    found = loaded("import supervisor.keeper.__main__, supervisor.views.headless.console", tmp_path)
    assert not found & {"torch", "textual", "rich", "plotext", "pynvml"}, found


def test_trainer_and_supervisor_do_not_know_each_other(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import trainer.config, sys; print([m for m in sys.modules if m.startswith('supervisor')])"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
