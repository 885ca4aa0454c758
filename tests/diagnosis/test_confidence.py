"""How sure a verdict is where nothing limits it: a log's last word, and an end that is shown or not."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.verdict import Examination, examine
from supervisor.run.records import SURELY_OVER
from supervisor.sources.signature_files import Engine

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def raised(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 9, in main\n    step()\n{error}\n'


def examined(text: str, engine: Engine) -> Examination:
    job = JobEvidence(logs=(LogSource("a.log", (text.encode(),)),))
    return examine(job, engine.signatures, engine.matcher)


@pytest.mark.parametrize(
    "end", [raised(OOM), raised("KeyError: 'labels'"), raised("ModuleNotFoundError: No module named 'apex'")]
)
def test_a_logs_last_word_is_certain(end: str, engine: Engine) -> None:
    found = examined(STEPS + end, engine)
    assert found.decision.limits() == []
    assert found.verdict.confidence >= 0.9


def test_steps_alone_do_not_show_an_end(engine: Engine) -> None:
    running = examined(STEPS, engine).verdict
    finished = examined(STEPS + "Training completed!\n", engine).verdict
    assert 0.9 <= running.confidence < SURELY_OVER <= finished.confidence
    assert not running.shows_end
    assert finished.shows_end
