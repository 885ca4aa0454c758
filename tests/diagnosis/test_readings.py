"""What a verdict rests on beside signatures: silences, bars, last words, job states, collectors' prefixes, ends of tracebacks."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.scan.log_timeline import bar_went_on, silence
from supervisor.diagnosis.scan.matched_lines import is_progress
from supervisor.diagnosis.scan.scanner import LiveScanner
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.diagnosis.scan.windows import unwrapped
from supervisor.diagnosis.slurm_states import state_in
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import SURELY_OVER, FailureClass
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin
from tests.corpus.scoring import examined

STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(10, 60))
BARS = "".join(f"epoch 3/20 step {n}/100 loss 2.{n}\n" for n in range(10, 90))
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 9, in main\n    step()\n'
CLOCK = [f"2026-01-01 10:00:{10 * at:02d} step {at} loss 2.0" for at in range(6)]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([*CLOCK, "2026-01-01 10:05:00 stopped"], (250.0, 10.0, 10.0)),
        (CLOCK, None),  # nothing came later
        ([*CLOCK[:1], "2026-01-01 10:05:00 a", "2026-01-01 10:06:00 b"], None),  # one step has no pace
        ([*CLOCK[:2], "2026-01-01 10:05:00 a"], (290.0, 10.0, 10.0)),
        ([*CLOCK, "2026-01-01 10:01:00 a", "2026-01-01 10:09:00 b", "2026-01-01 10:09:01 c"], (480.0, 10.0, 10.0)),
    ],
)  # fmt: skip
def test_how_long_it_was_silent_at_the_end(lines: list[str], found: tuple[float, ...] | None) -> None:
    assert silence(lines) == found


@pytest.mark.parametrize(
    ("before", "after", "went_on"),
    [
        (b" 2%| | 108/5153 [08:05<1", b" 2%| | 109/5153 [08:09<1 2%| | 120/5153 [09:05<1", True),
        (b" 2%| | 108/5153 [08:05<1", b" 2%| | 109/5153 [08:09<1", False),
        (b" 2%| | 108/5153 [08:05<1", b" 2%| | 120/999 [09:05<1", False),
        (b" 0%| | 0/5153 [00:00<1", b" 2%| | 120/5153 [09:05<1", False),
        (b" 2%| | 108/5153 [08:05<1", b"Traceback\n 2%| | 120/5153 [09:05<1", False),
    ],
)
def test_whether_a_bar_went_on(before: bytes, after: bytes, went_on: bool) -> None:
    assert bar_went_on(before, after) is went_on


def test_a_step_of_slurm_is_none_of_the_training() -> None:
    assert not is_progress("srun: Force Terminated job step 255.0")
    assert is_progress("step 255 loss 2.1")


@pytest.mark.parametrize(
    ("text", "shows_end"),
    [
        (STEPS, False),
        (STEPS + "Training completed!\n", True),
        (STEPS + "best step 40\nDone.\n", True),
        ("Done.\n" + STEPS, False),  # it had loaded its data
        (STEPS.replace("step 30 ", "Done.\nstep 30 ") + "Done.\n", False),  # it closes each epoch
        (STEPS + "Training time 21:51:05\nTest: [5/6] loss: 6.3 eta: 0:00:00\nLast checkpoint saved at out/last.pth (epoch=299)\n", True),
        (BARS + "Done!\n", False),  # far from the total
        (BARS + "Early stopping at epoch 3\n", True),
    ],
)  # fmt: skip
def test_what_is_printed_once_below_the_last_step_closes_the_training(
    text: str, shows_end: bool, engine: Engine
) -> None:
    found = examined(text, engine).verdict
    assert found.shows_end is shows_end is (found.confidence >= SURELY_OVER)


@pytest.mark.parametrize(
    "error",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "KeyError: 'labels'",
        "ModuleNotFoundError: No module named 'apex'",
    ],
)
def test_a_logs_last_word_is_certain(error: str, engine: Engine) -> None:
    found = examined(f"{STEPS}{RAISED}{error}\n", engine)
    assert found.decision.limits() == []
    assert found.verdict.confidence >= 0.9


SACCT = """JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
4711              train        gpu        lab          8 {:>10}    0:125
"""


@pytest.mark.parametrize(
    ("record", "by_sacct", "state"),
    [
        (SACCT.format("OUT_OF_ME+"), True, "OUT_OF_MEMORY"),
        (SACCT.format("CANCELLED+"), True, "CANCELLED"),
        (SACCT.format("NODE_FAIL"), True, "NODE_FAIL"),
        (SACCT.format("COMPLETED"), True, "COMPLETED"),
        (SACCT.format("RUNNING"), True, None),
        ("cancelled_by=TIMEOUTS", True, None),
        ("training COMPLETED in 3 h, 0 FAILED", False, None),  # only sacct prints bare states
        ("JobId=4711\n   JobState=OUT_OF_MEMORY Reason=OutOfMemory", False, "OUT_OF_MEMORY"),
    ],
)
def test_job_states_as_scontrol_and_sacct_print_them(record: str, by_sacct: bool, state: str | None) -> None:
    assert state_in(record, by_sacct=by_sacct) == state


TRACE = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 88, in main',
    "    out = step(batch)",
]


def test_the_rank_of_a_prefix_is_kept() -> None:
    wrapped = "\n".join(f"2024-08-11 10:00:0{row} out | [rank3]: {line}" for row, line in enumerate(TRACE))
    bare = unwrapped(wrapped.encode()).decode().split("\n")
    assert bare == [f"[rank3]: {line}" for line in TRACE]


@pytest.mark.parametrize(
    "lines",
    [
        [f"[rank3]: {line}" for line in TRACE],
        [f"[default0]:{line}" for line in TRACE],
        [f"node1: {line}" for line in TRACE],
        # A logger that puts its label to the head alone, and a program's own records.
        ["ERROR:root:Traceback (most recent call last):", *TRACE[1:]],
        ['{"rank": 1, "level": "ERROR", "msg": "missing /data (ENOENT)", "exc": "FileNotFoundError"}'],
    ],
)
def test_what_launchers_and_programs_say_themselves_is_left(lines: list[str]) -> None:
    text = "\n".join(lines).encode()
    assert unwrapped(text) is text


HEAD = "Traceback (most recent call last):"
FRAME = '  File "/w/train.py", line 3, in main\n    check(batch)\n'


def test_the_end_is_found_as_a_log_grows(engine: Engine) -> None:
    scanner = LiveScanner(engine.signatures, engine.matcher)
    found = []
    for part in (f"step 3 loss 2.1\n{HEAD}\n", FRAME, "Drift: 3\n", "saved\n"):
        hits = scanner.feed("log", part.encode())
        found.append([(hit.line, hit.text) for hit in hits if hit.has(Trait.ENDS_TRACEBACK)])
    assert found == [[], [], [(5, "Drift: 3")], []]


def test_a_line_that_a_signature_knows_stays_its_own(engine: Engine) -> None:
    scanner = LiveScanner(engine.signatures, engine.matcher)
    (hit,) = scanner.feed("log", f"{HEAD}\n{FRAME}torch.OutOfMemoryError: CUDA out of memory.\n".encode())
    assert hit.signature.failure is FailureClass.CUDA_OOM


def test_a_rank_that_raised_comes_before_a_peers_complaint(engine: Engine) -> None:
    complaint = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:40211"
    logs = (
        LogSource("0/stderr.log", (f"{HEAD}\n{FRAME}{complaint}\n".encode(),), Origin(rank=0)),
        LogSource("1/stderr.log", (f"{HEAD}\n{FRAME}Drift: 3\n".encode(),), Origin(rank=1)),
    )
    verdict = diagnose(JobEvidence(logs, {0: 1, 1: 1}, 1), engine.signatures, engine.matcher)
    assert (verdict.failure, verdict.rank) == (FailureClass.CODE_ERROR, 1)
    assert not any("NCCL" in line for line in verdict.advice)
