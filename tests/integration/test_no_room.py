"""Inodes, space and rights that run out: at the start one line, later the training goes on where it can."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.index import listed_names, register
from supervisor.run.records import FailureClass
from tests.conftest import not_none, wait_until
from tests.disks import fill, small_disk
from tests.integration.harness import facts, only_run, state_of, stoker, wait_for_state, wait_for_step
from tests.keeper.fakes import job_of, own_run_in
from tests.tiers import first

pytestmark = pytest.mark.timeout(300)
PYTHON = ("--python", sys.executable)


@pytest.mark.parametrize("size", first(1, ["256k,nr_inodes=20", "2g,nr_inodes=4", "8k"]))
@pytest.mark.fault(
    "journal and disk",
    "no inodes or no space at the start, with and without checks",
    "one line, exit 2, and nothing is left of the run",
)
def test_a_start_without_room_is_one_line(size: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size) as disk:
        for how in (("--no-ui",), ("--no-ui", "--no-check"), ("--detach", "--no-check")):
            start = stoker("run", *how, *PYTHON, "--", "true", cwd=disk)
            assert (start.code, start.err.count("\n"), start.out) == (2, 1, ""), start
            assert "--runs-dir" in start.err
        assert not any((disk / "runs").glob("2*"))


@pytest.mark.parametrize("size", ["2m,nr_inodes=4", "256k"])
@pytest.mark.fault(
    "journal and disk",
    "the user's state folder is full or read-only",
    "a name that cannot be saved is not confirmed; a log is not observed unrecorded; a run continues",
)
def test_a_state_folder_without_room(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = own_run_in(tmp_path, job_of(tmp_path))
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 2.5\n", encoding="utf-8")
    with small_disk(tmp_path / "disk", size) as disk:
        monkeypatch.setenv("XDG_STATE_HOME", str(disk))
        fill(disk)
        for number in range(4 if "inodes" in size else 0):
            try:
                (disk / f"taken-{number}").touch()
            except OSError:
                break
        register(run, "job", os.environ)  # a start: it is not refused for it
        assert main(["attach", "--no-ui", str(log)]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert "set XDG_STATE_HOME to a folder of yours" in said.err
        assert "No space left on device" in said.err
        assert not listed_names(os.environ)


OPEN = 'umask 000; "$0" -m supervisor "$@"; "$0" -m supervisor attach --no-ui --keep train.log'


@pytest.mark.e2e
@pytest.mark.fault(
    "secrets and access", "a umask of 000", "neither runs/ nor the state folder is open to all"
)
def test_what_is_made_under_an_open_umask_is_closed(tmp_path: Path) -> None:
    state = tmp_path / "home" / "state"
    made = subprocess.run(
        ["sh", "-c", OPEN, sys.executable, "run", "--no-ui", "--no-check", *PYTHON, "--", "true"],
        cwd=_with_log(tmp_path / "job"),
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "XDG_STATE_HOME": str(state),
        },
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in made.stderr
    paths = [
        state.parent,
        *(path for root in (state, tmp_path / "job" / "runs") for path in [root, *root.rglob("*")]),
    ]
    assert len(paths) > 20
    runs = tmp_path / "job" / "runs"
    for path in paths:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not path.is_symlink():
            assert mode & (0o002 if path == runs else 0o077) == 0, f"{path}: {mode:04o}"


def _with_log(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.log").write_text("step 1 loss 2.5\nTraining finished\n", encoding="utf-8")
    os.utime(folder / "train.log", (1e9, 1e9))
    return folder


TAKES_ALL = """
import os, sys, time
for step in range(1, 2000):
    print(f"step {step} loss {5 - step / 1000:.3f}", flush=True)
    if step == 5:
        os.makedirs("taken")
        try:
            for number in range(100_000):
                open(f"taken/{number}", "w").close()
        except OSError:
            pass
    time.sleep(0.02)
"""


@pytest.mark.e2e
@pytest.mark.fault(
    "journal and disk",
    "a job takes all inodes of its disk",
    "training continues and every step is journaled; a request that cannot be written is reported; a stop reaches the run",
)
def test_a_run_without_inodes_goes_on_and_can_be_stopped(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64m,nr_inodes=120") as disk:
        (disk / "train.py").write_text(TAKES_ALL, encoding="utf-8")
        words = ("--detach", "--no-check", *PYTHON, "--", sys.executable, "train.py")
        assert stoker("run", *words, cwd=disk).code == 0
        run = only_run(disk)
        try:
            assert wait_until(lambda: os.statvfs(disk).f_favail == 0, 60)
            wait_for_step(run, 40)
            asked = stoker("profile", run.run_id, cwd=disk)
            assert (asked.code, asked.err) == (1, f"stoker profile: {run.control}: No space left on device\n")
        finally:
            stopped = stoker("stop", run.run_id, cwd=disk)
        assert stopped.code == 0, stopped.err
        state = wait_for_state(run, st.Finished)
        assert isinstance(state.condition, st.Finished)
        assert state.condition.outcome is ev.Outcome.STOPPED
        assert (state.last_step or 0) >= 40
        assert "Traceback" not in run.node().log.read_text(encoding="utf-8")


PRINTS = """
import os, sys, time
for step in range(1, 400):
    if step == 10 and os.environ["RANK"] == "0":
        with open(sys.argv[1], "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
    print(f"step {step} loss {5 - step / 1000:.3f} {'x' * 400}", flush=True)
    time.sleep(0.02)
"""


@pytest.mark.e2e
@pytest.mark.fault(
    "journal and disk",
    "torchrun's ranks print onto a full disk",
    "the print raises Errno 28 and ends them; the verdict is disk_full, and every event is kept",
)
def test_a_print_onto_a_full_disk_ends_the_rank_that_prints(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "3m") as disk:
        (disk / "train.py").write_text(PRINTS, encoding="utf-8")
        words = ("--no-ui", "--no-check", "--no-retry", *PYTHON, "--nproc-per-node", "2", "train.py")
        done = stoker("run", *words, str(disk / "filler"), cwd=disk)
        assert done.code == 1, done.err
        run = only_run(disk)
        state = state_of(run)
        assert state.attempt is not None
        assert not_none(state.attempt.verdict).failure is FailureClass.DISK_FULL
        assert 9 <= (state.last_step or 0) < 399
        kinds = [json.loads(line)["kind"] for line in run.node().journal.read_bytes().splitlines() if line]
        assert kinds[-2:] == ["run_ended", "keeper_left"]
        assert any(isinstance(fact, ev.AttemptEnded) and fact.exit_code == 1 for fact in facts(run))
