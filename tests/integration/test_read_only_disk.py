"""A filesystem that is mounted read-only: runs on it are shown, and what would write there is refused in one line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.disks import small_disk
from tests.integration.harness import only_run, stoker


@pytest.mark.e2e
@pytest.mark.fault(
    "journal and disk",
    "a read-only mount: every verb",
    "existing runs are shown; a start is refused in one line",
)
def test_what_is_there_is_shown_and_nothing_is_started(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2g") as disk:  # a start wants a gigabyte free
        assert stoker("run", "--no-ui", "--", "false", cwd=disk).code == 1
        run = only_run(disk)
        before = run.node().journal.read_bytes()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        shown = stoker("attach", "--no-ui", run.run_id, cwd=disk)
        assert (shown.code, "Traceback" in shown.err) == (1, False), "the run's own code"
        assert str(run.root) in shown.out
        assert stoker("diagnose", str(run.root), cwd=disk).code in {10, 11}
        assert run.run_id in stoker("runs", cwd=disk).out
        start = stoker("run", "--no-ui", "--", "true", cwd=disk)
        assert (start.code, start.err.count("\n")) == (2, 1)
        assert "cannot be written: choose another place with --runs-dir" in start.err
        for how in ("--no-ui", "--detach"):
            again = stoker("continue", "--yes", how, run.run_id, cwd=disk)
            assert again.code == 2
            assert "Read-only file system" in again.err.splitlines()[-1]
            assert "Traceback" not in again.err
        assert run.node().journal.read_bytes() == before
