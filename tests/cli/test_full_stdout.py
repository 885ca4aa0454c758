"""A stdout that takes no more: each verb says so on stderr and by its exit code, buffered or not; a run keeps its own code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.disks import FULL_DEVICE, fill, needs_full_device, small_disk
from tests.integration.harness import STOKER, Done, environment, only_run, stoker

FULL = "No space left on device"
LOG = "".join(f"step {step} loss {5 - step / 9999:.4f} lr 0.001\n" for step in range(2000))
SCRIPT = "print('step 1 loss 2.0')\n"
CALLS = (
    "config explain grace",
    "run --dry-run train.py",
    "--help",
    "diagnose train.log",
    "metrics train.log",
)


def told(words: str, stdout: Path, cwd: Path, *, unbuffered: bool) -> Done:
    """What a verb says on stderr where its stdout is this file."""
    env = environment({"PYTHONUNBUFFERED": "1" if unbuffered else ""})
    with stdout.open("ab", buffering=0) as file:
        done = subprocess.run(
            [*STOKER, *words.split()],
            cwd=cwd, env=env, stdout=file, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    return Done(done.returncode, "", done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "train.log").write_text(LOG, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("unbuffered", [False, True], ids=["buffered", "unbuffered"])
@pytest.mark.fault(
    "journal and disk",
    "a full disk behind stdout",
    "each verb reports it in one line; exit code 2, or its own failure code",
)
def test_no_verb_loses_its_output_in_silence(folder: Path, unbuffered: bool) -> None:
    needs_full_device()
    for words in CALLS:
        done = told(words, FULL_DEVICE, folder, unbuffered=unbuffered)
        assert done.code == 2 or (done.code, words) == (11, "diagnose train.log"), (words, done)
        assert done.err.splitlines()[-1].endswith(f"stdout: {FULL}"), (words, done)
        assert "name a log file" not in done.err
        assert "Traceback" not in done.err


def test_a_disk_that_takes_a_part_of_it_is_noticed(folder: Path) -> None:
    with small_disk(folder / "disk", "64k") as disk:
        os.truncate(fill(disk), os.path.getsize(disk / "filler") - 4096)
        done = told("metrics train.log --json", disk / "out", folder, unbuffered=True)
        assert 0 < os.path.getsize(disk / "out") < len(LOG)
    assert (done.code, done.err.splitlines()[-1]) == (2, f"stoker metrics: stdout: {FULL}")


def test_an_error_that_nobody_can_read_keeps_its_exit_code(folder: Path) -> None:
    needs_full_device()
    with FULL_DEVICE.open("wb", buffering=0) as full:
        done = subprocess.run([*STOKER, "nosuch"], cwd=folder, env=environment(), stderr=full, check=False)
    assert done.returncode == 2


def test_a_run_keeps_its_code_and_a_detached_one_is_named(folder: Path) -> None:
    needs_full_device()
    words = f"run --no-ui --no-check --no-retry --python {sys.executable} --runs-dir watched -- sh -c"
    assert told(f"{words} exit", FULL_DEVICE, folder, unbuffered=False).code == 0
    words = f"run --detach --no-check --python {sys.executable} -- true"
    done = told(words, FULL_DEVICE, folder, unbuffered=False)
    run = only_run(folder)
    try:
        assert done.code == 2
        assert f"{run.run_id} has begun" in done.err
        assert f"stdout: {FULL}" in done.err
    finally:
        stoker("stop", str(run.root), cwd=folder)
