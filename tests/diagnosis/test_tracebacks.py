"""Where tracebacks end: the exception is found by layout, while a log grows too."""

from __future__ import annotations

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.scan.scanner import LiveScanner
from supervisor.diagnosis.scan.signature_tables import Trait
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import FailureClass
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

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
