"""Pipes, devices and endless files where stoker looks for regular ones: nothing waits for them, and nothing is lost by them."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import pytest

from supervisor.keeper.process.child import read_exit, read_pid
from supervisor.run import control
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.regular import open_regular, read_regular
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.text.decode import gunzip, plain_chunks
from tests.integration.harness import only_run, state_of, stoker
from tests.tiers import first

pytestmark = pytest.mark.timeout(300)
HANG_S = 60.0

ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB\n"


def fifo(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.fault(
    "hostile input",
    "FIFOs, devices and endless files where a file is expected",
    "refused at once; no descriptor is left",
)
def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"abc")
    with open_regular(plain) as file:
        assert file.read() == b"abc"
    assert read_regular(plain, 2) == b"ab"
    (tmp_path / "link").symlink_to(fifo(tmp_path / "pipe"))
    for path in (
        tmp_path / "pipe",
        tmp_path / "link",
        tmp_path,
        Path("/dev/zero"),
        Path("/proc/self/status"),
        tmp_path / "none",
    ):
        with pytest.raises(OSError, match=str(path)):
            open_regular(path)
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with pytest.raises(OSError, match="no regular file"):
            open_regular(tmp_path / "pipe")
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.fault(
    "hostile input", "FIFOs named error.json, exit, control/x.json", "no reader waits for them"
)
def test_pipes_in_a_run_directory_hold_nobody(tmp_path: Path) -> None:
    """Each is read as if it were missing; a request is refused."""
    run = RunPaths(tmp_path)
    attempt = run.node().attempt(1)
    for path in (
        run.run_json,
        run.node().journal,
        attempt.exit,
        attempt.root / "pid",
        run.control / "x.json",
    ):
        fifo(path)
    assert read_exit(attempt) is None
    assert read_pid(attempt) is None
    assert state_of(run).started_t is None
    with pytest.raises(BadRunFile, match="no regular file"):
        read_run_file(run.run_json)
    refused = control.pending(run.control)
    assert [item.id for item in refused] == ["x"]
    assert isinstance(refused[0], control.BadRequest)


@pytest.mark.parametrize(
    "verb", first(1, [["diagnose"], ["metrics"], ["attach", "--no-ui"]]), ids=lambda verb: verb[0]
)
@pytest.mark.fault("hostile input", "/proc/kmsg and the like given as a log", "one line, exit 2")
def test_an_endless_file_of_the_kernel_is_refused_in_one_line(tmp_path: Path, verb: list[str]) -> None:
    done = stoker(*verb, "/proc/kmsg", cwd=tmp_path, timeout_s=HANG_S)
    assert done.code == 2, done.out
    assert done.err.count("\n") == 1
    assert "/proc/kmsg" in done.err


SCRIPT = """
import os, sys, time
attempt = os.path.join(os.environ["STOKER_RUN_DIR"], "nodes", "0", "attempts", os.environ["STOKER_ATTEMPT"])
os.mkfifo(os.path.join(os.environ["STOKER_RUN_DIR"], "control", "x.json"))
os.mkfifo(os.path.join(os.environ["STOKER_RUN_DIR"], "control", "viewer-1@here"))
os.mkfifo(os.path.join(attempt, "error.json"))
os.mkfifo(os.path.join(attempt, "telemetry", "rank0.jsonl"))
request, end = os.path.join(os.environ["STOKER_RUN_DIR"], "control", "x.json"), time.monotonic() + 30
while os.path.lexists(request) and time.monotonic() < end:
    time.sleep(0.02)  # a run that ends at once may be over before its keeper looks there
print("ValueError: it broke", flush=True)
sys.exit(1)
"""


@pytest.mark.e2e
@pytest.mark.fault("hostile input", "a job creates FIFOs where its keeper reads", "the keeper continues")
def test_a_job_that_makes_pipes_where_its_keeper_looks_holds_nobody(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    words = ("--python", sys.executable, "--no-retry", "--", sys.executable, "train.py")
    done = stoker("run", "--no-ui", *words, cwd=tmp_path, timeout_s=HANG_S * 2)
    assert done.code == 1, done.err
    state = read_state(only_run(tmp_path).node().journal)
    assert state.answered.get("x") is not None, "the request was answered"


@pytest.mark.fault("hostile input", "gzip nested 1,200-fold", "read to a limited depth")
def test_gzip_within_gzip_is_read_to_a_depth_and_no_further() -> None:
    data = ERROR.encode()
    for _ in range(3):
        data = gzip.compress(data)
    assert b"".join(plain_chunks([data])) == ERROR.encode()
    for _ in range(1200):
        data = gzip.compress(data, 1)
    torn: list[bool] = []
    assert b"".join(plain_chunks([data], lambda: torn.append(True))) == b""
    assert torn == [True]


@pytest.mark.fault("hostile input", "a gzip bomb", "cut off at a limit, and reported")
def test_what_unpacks_to_too_much_is_cut() -> None:
    torn: list[bool] = []
    bomb = gzip.compress(bytes(50 << 20))
    size = sum(map(len, gunzip([bomb], lambda: torn.append(True), most_bytes=3 << 20)))
    assert 3 << 20 <= size <= 4 << 20
    assert torn == [True]
