"""What `stoker attach LOG|FOLDER|PID|-` watches, and what becomes of the directories that it makes."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli import attach_targets as targets
from supervisor.cli.attach_targets import NOT_UNPACKED, resolve
from supervisor.cli.main import main
from supervisor.keeper.observed_run import Target
from supervisor.run.paths import RunPaths
from supervisor.sources.processes import identify
from tests.conftest import wait_until

WAIT = "import os, time; os.write(1, b'ready\\n'); time.sleep(600)"


def target_of(words: str, tmp_path: Path) -> Target:
    return resolve(words, RunPaths(tmp_path / "observed"))[0]


def test_a_log_is_read_in_place(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n")
    found = target_of(str(log), tmp_path)
    assert (found.name, found.source, found.pipe) == ("train.log", str(log), None)
    assert [(each.path, each.packed) for each in found.logs] == [(str(log), "")]


@pytest.mark.parametrize("name", ["a.log.gz", "a.log"])
def test_a_packed_log_is_read_from_a_plain_copy(tmp_path: Path, name: str) -> None:
    """PowerShell redirects as UTF-16."""
    text = "step 1 | loss 2.5\nstep 2 | loss 2.25\n"
    packed = tmp_path / name
    packed.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode("utf-16"))
    found = target_of(str(packed), tmp_path)
    (log,) = found.logs
    assert (log.name, log.packed, found.cut) == (str(packed), str(packed), "")
    assert Path(log.path).read_text() == text
    assert Path(log.path).is_relative_to(tmp_path / "observed"), "views read the run directory"


@pytest.mark.parametrize("rest", [b"", b"no gzip at all" * 20], ids=["cut", "damaged"])
def test_a_packed_log_that_was_not_unpacked_to_its_end_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rest: bytes
) -> None:
    log = tmp_path / "x.log.gz"
    log.write_bytes(gzip.compress(b"step 1 loss 2.5\n" * 2000)[:-20] + rest)
    assert main(["attach", "--no-ui", str(log)]) == 6
    assert NOT_UNPACKED in capsys.readouterr().out


def test_unpacking_leaves_the_disk_some_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "FREE_BYTES", 1 << 60)
    packed = tmp_path / "train.log.gz"
    packed.write_bytes(gzip.compress(b"line\n" * 1000))
    assert target_of(str(packed), tmp_path).cut == NOT_UNPACKED


def test_a_folders_logs_have_their_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank_{rank}.log").write_text("step 1\n")
    found = target_of(str(folder), tmp_path)
    assert sorted((log.name, log.origin.rank) for log in found.logs) == [
        (str(folder / "rank_0.log"), 0),
        (str(folder / "rank_1.log"), 1),
    ]


def test_a_process_is_watched_with_the_files_that_it_writes(tmp_path: Path) -> None:
    with (
        (tmp_path / "out.log").open("w") as out,
        subprocess.Popen([sys.executable, "-c", WAIT], stdout=out, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            assert wait_until(lambda: bool((tmp_path / "out.log").read_text()), 20)
            found = target_of(str(process.pid), tmp_path)
            assert found.processes == ((0, identify(process.pid)),)
            assert [log.path for log in found.logs] == [str(tmp_path / "out.log")]
            assert (found.source, found.unseen) == (f"pid {process.pid}", "")
        finally:
            process.kill()


def test_the_ranks_below_a_launcher_are_watched_under_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = (
        "import os, subprocess, sys\n"
        f"ranks = [subprocess.Popen([sys.executable, '-c', {WAIT!r}], env={{**os.environ, 'RANK': r}}) for r in '01']\n"
        "[rank.wait() for rank in ranks]\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    ) as launcher:
        assert launcher.stdout is not None
        try:
            assert [launcher.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
            found = resolve(str(launcher.pid), RunPaths(tmp_path))[0]
            assert [rank for rank, _ in found.processes] == [0, 1]
            assert all(process.pid != launcher.pid for _, process in found.processes)
            assert "cannot be seen" in found.unseen
            assert found.unseen in capsys.readouterr().err
        finally:
            os.killpg(launcher.pid, 9)


def test_where_no_directory_can_be_made_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(log))
    assert main(["attach", "--no-ui", str(log)]) == 2
    assert "set XDG_STATE_HOME to a folder of yours" in capsys.readouterr().err


def test_text_behind_the_hole_that_a_truncation_left_is_a_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with log.open("wb") as out:
        out.seek(1 << 20)
        out.write(b"step 1\n")
    assert target_of(str(log), tmp_path).logs[0].path == str(log)
