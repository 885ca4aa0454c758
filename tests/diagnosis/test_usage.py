"""A program that was called wrongly: exit code 2 and one line on its own stderr."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import FailureClass, Verdict
from supervisor.sources.signature_files import default_cache_dir, load_engine
from supervisor.text.prefixes import Origin

AGENT = (
    b"E0301 10:00:00.000000 41 torch/distributed/elastic/multiprocessing/api.py:882] "
    b"failed (exitcode: %d) local_rank: 0 (pid: 42) of binary: /usr/bin/python3\n"
)


def judged(stderr: bytes, code: int) -> Verdict:
    engine = load_engine(default_cache_dir())
    own = LogSource("0/stderr.log", (stderr,), Origin(local_rank=0, stream="stderr"))
    agent = LogSource("agent.log", (AGENT % code,), Origin())
    return diagnose(JobEvidence(logs=(agent, own), launcher_exit=1), engine.signatures, engine.matcher)


def test_exit_2_and_a_line_is_wrong_usage() -> None:
    verdict = judged(b"warming up\ntool: depth must be at least 1\n\n", 2)
    assert verdict.failure is FailureClass.USAGE_ERROR
    assert verdict.cause is not None
    assert (verdict.cause.path, verdict.cause.line) == ("0/stderr.log", 2)
    assert verdict.confidence < 0.9, "a convention, not a proof"


@pytest.mark.parametrize(
    ("stderr", "code"),
    [(b"", 2), (b"tool: depth must be at least 1\n", 3), (b"done\n", 2)],
    ids=["silent", "another code", "no message"],
)
def test_neither_the_code_nor_a_line_alone_is(stderr: bytes, code: int) -> None:
    assert judged(stderr, code).failure is not FailureClass.USAGE_ERROR
