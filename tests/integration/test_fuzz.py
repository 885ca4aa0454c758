"""Everything that reads what others wrote, on hostile input: what `bench/fuzz.py` once found, and each parser for a while."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.fuzz import in_child
from bench.fuzz_parsers import FAULT_HANDLER, PARSERS, RAS, SCRIPT, STACKS, verb
from supervisor.diagnosis.hang.stacks import parse_stack
from supervisor.diagnosis.hang.stuck_collectives import read_ras
from supervisor.run import control
from supervisor.run.journal import JournalReader
from supervisor.run.ownership import read_holder
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.sources.telemetry import parse_telemetry
from tests.tiers import first

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
    (tmp_path / "train.py").write_bytes(SCRIPT)
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
    (tmp_path / "train.py").write_bytes(SCRIPT)
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
