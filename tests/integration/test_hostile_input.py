"""What others wrote or laid down: pipes, devices, endless files, mutated input. Nothing waits for it, breaks by it or acts on a terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.fuzz import in_child
from bench.fuzz_parsers import FAULT_HANDLER, PARSERS, RAS, STACKS, verb
from bench.fuzz_parsers import SCRIPT as PLAIN_SCRIPT
from supervisor.diagnosis.hang.stacks import parse_stack
from supervisor.diagnosis.hang.stuck_collectives import read_ras
from supervisor.keeper.process.child import read_exit, read_pid
from supervisor.run import control
from supervisor.run.journal import JournalReader, read_state
from supervisor.run.ownership import read_holder
from supervisor.run.paths import RunPaths
from supervisor.run.regular import open_regular, read_regular
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.sources.telemetry import parse_telemetry
from tests.integration.harness import only_run, state_of, stoker
from tests.tiers import first

pytestmark = pytest.mark.timeout(300)
HANG_S = 60.0


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


FUZZ_S = 8.0
CPU_S = 5.0
NESTED = b"[" * 100_000 + b"]" * 100_000
DIGITS = "9" * 5000


@contextmanager
def quickly() -> Iterator[None]:
    """What is done takes no more than `CPU_S` of the processor."""
    began = time.process_time()
    yield
    assert time.process_time() - began < CPU_S


@pytest.mark.fault(
    "hostile input",
    "broken UTF-8 and endless nesting in telemetry, journal, lock, request, run record",
    "the record is skipped",
)
def test_bytes_that_are_no_text_and_nesting_without_end_are_no_record(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    for line in (
        b'{"kind":"step","t_wall":1,"note":"\xff"}',
        b'{"kind":"step","t_wall":1,"note":%s}' % NESTED,
    ):
        assert parse_telemetry(line) is None
        path.write_bytes(line + b"\n")
        reader = JournalReader(path)
        assert (reader.read(), reader.skipped) == ([], 1)
        assert read_holder(path) is None
        assert isinstance(control.pending(tmp_path)[0], control.BadRequest)
        with pytest.raises(BadRunFile, match="not a run file of this version"):
            read_run_file(path)


@pytest.mark.fault("hostile input", "numbers of 5,000 digits in stacks and NCCL reports", "read as numbers")
def test_numbers_of_thousands_of_digits_are_numbers() -> None:
    """`int` refuses more than 4300 digits."""
    for text in (STACKS.replace("50", DIGITS), FAULT_HANDLER.replace("50", DIGITS)):
        assert parse_stack(text.split("\n"))
    read_ras(RAS.replace("6650", DIGITS).replace("Rank 3", f"Rank {DIGITS}"))


@pytest.mark.fault(
    "hostile input", "control characters in arguments and file names", "no message or JSON contains them raw"
)
def test_what_a_person_typed_cannot_act_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for argv in (
        ("run", "no\rsuch\x1b[2J.py"),
        ("diagnose", "no\rsuch\x1b[2J"),
        ("runs", "--no\rsuch\x9b31m"),
    ):
        verb(*argv)  # it looks at what is printed
    (tmp_path / "train.py").write_bytes(PLAIN_SCRIPT)
    plan = verb(
        "run",
        "--dry-run",
        "--json",
        "--nproc-per-node",
        "1",
        "train.py",
        "--name",
        "a\x9b31m\u202eb",
        json_lines=True,
    )
    assert json.loads(plan)["argv"][-1] == "a\x9b31m\u202eb"


@pytest.mark.fault("hostile input", "a command line of 2,000 flags", "read in bounded time")
def test_two_thousand_flags_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_bytes(PLAIN_SCRIPT)
    with quickly():
        flags = [f"--batch-s{number}" for number in range(2000)]
        verb("run", "--dry-run", "--json", "--nproc-per-node", "1", "train.py", *flags, json_lines=True)


@pytest.mark.e2e
@pytest.mark.timeout(FUZZ_S + 600)
@pytest.mark.parametrize("name", first(2, PARSERS))
@pytest.mark.fault("hostile input", "16 parsers on mutated input", "no crash, no hang, memory bounded")
def test_no_input_breaks_it(name: str) -> None:
    """The same cases each time: one that was never seen before belongs to `bench/fuzz.py`, not to a run of the tests."""
    report = in_child(name, FUZZ_S, seed=1)
    assert not report["findings"], "\n".join(report["findings"])
    assert report["cases"] > 3
