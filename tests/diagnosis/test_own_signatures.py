"""A user's own signatures: what they match, when they count, what the verdict says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import diagnose
from supervisor.job.spec import OwnSignature
from supervisor.run.records import FailureClass, Verdict
from supervisor.sources.signature_files import load_engine

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
DIVERGED = "simulator diverged at t=41 (energy 9e9)\n"
NAMED = OwnSignature("sim-diverged", r"simulator diverged at t=\d+", "code_error", "The simulator diverged")


def judged(text: str, *own: OwnSignature, cache: Path | None = None) -> Verdict:
    engine = load_engine(str(cache) if cache is not None else None, own)
    job = JobEvidence(logs=(LogSource("log", (text.encode(),)),))
    return diagnose(job, engine.signatures, engine.matcher)


def test_a_name_of_their_own_is_the_headline(tmp_path: Path) -> None:
    for _ in range(2):  # compiled, and then out of the cache
        found = judged(STEPS + DIVERGED, NAMED, cache=tmp_path)
        assert (found.failure, found.signature) == (FailureClass.CODE_ERROR, "sim-diverged")
        assert found.title == "The simulator diverged"
        assert found.cause is not None
        assert found.cause.line == 21
        assert found.advice == ()
    assert judged(STEPS + DIVERGED, cache=tmp_path).signature == "", "the cache of others has it not"


def test_in_a_line_it_counts_for_more_than_a_signature_of_stoker() -> None:
    line = "RuntimeError: CUDA out of memory: arena of plugin physx is exhausted\n"
    assert judged(STEPS + line).failure is FailureClass.CUDA_OOM
    own = OwnSignature("physx-arena", "plugin physx is exhausted", "code_error", "PhysX ran out of its arena")
    assert judged(STEPS + line, own).signature == "physx-arena"


@pytest.mark.parametrize(
    ("start", "text", "counts"),
    [
        ("after_first_step", STEPS + DIVERGED, True),
        ("after_first_step", DIVERGED, False),
        ("before_first_step", DIVERGED, True),
        ("before_first_step", STEPS + DIVERGED, False),
    ],
)
def test_it_counts_when_it_is_expected(start: str, text: str, counts: bool) -> None:
    own = OwnSignature(NAMED.id, NAMED.regex, NAMED.failure, NAMED.title, start=start)
    assert bool(judged(text, own).signature) is counts


def test_as_advice_it_masks_a_line() -> None:
    line = "RuntimeError: CUDA out of memory (expected by the probe)\n"
    own = OwnSignature("probe", "expected by the probe", "cuda_oom", role="advice")
    assert judged(STEPS + line, own).failure is FailureClass.HEALTHY


def test_a_consequence_yields_to_a_cause() -> None:
    own = OwnSignature(NAMED.id, NAMED.regex, "nccl_error", role="consequence")
    raised = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\n    go()\nKeyError: 1\n'
    assert judged(STEPS + raised + DIVERGED, own).failure is FailureClass.CODE_ERROR
    assert judged(STEPS + DIVERGED, own).failure is FailureClass.NCCL_ERROR
