"""What limits a verdict's confidence: one case for each kind of evidence, and the last word of a log, which nothing limits."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.root_cause import LIMITS, MOST_LINES_BELOW
from supervisor.diagnosis.verdict import Examination, examine
from supervisor.run.records import SURELY_OVER
from supervisor.sources.signature_files import Engine

STEPS = "".join(f"step {number} loss {3 - number / 100:.3f}\n" for number in range(1, 21))
NOTES = "".join(f"writing sample {number}\n" for number in range(MOST_LINES_BELOW + 1))
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def raised(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 9, in main\n    step()\n{error}\n'


def examined(text: str, engine: Engine) -> Examination:
    job = JobEvidence(logs=(LogSource("a.log", (text.encode(),)),))
    return examine(job, engine.signatures, engine.matcher)


CASES = {
    "another_cause_below": STEPS
    + raised("OSError: [Errno 28] No space left on device: 'out/a.pt'")
    + "retry\n" * 20
    + raised(OOM),
    "unknown_words": STEPS + raised("acme.errors.WidgetError: the widget is upside down"),
    "log_continues": STEPS + raised(OOM) + NOTES,
    "only_a_warning": "WARNING: ModuleNotFoundError: No module named 'apex'\n",
    "ended_later": STEPS + raised(OOM) + NOTES + "srun: error: n1: task 0: Exited with exit code 1\n",
    "vague_type": STEPS + raised("ValueError: what now"),
    "words_of_another_class": STEPS
    + raised("RuntimeError: CUDA error: uncorrectable parity error of a new kind"),
    "as_strong_rival": STEPS
    + raised("OSError: [Errno 28] No space left on device: 'out/a.pt'")
    + raised(OOM),
    "notice_alone": "checkpoint not found at out/last.ckpt, starting from scratch\nloading the model\n",
    "notice": "using plain kernels: ModuleNotFoundError: No module named 'apex'\n"
    "srun: error: n1: task 0: Exited with exit code 1\n",
    "end_not_shown": STEPS + f"{OOM}\n",
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_evidence_limits_the_confidence(name: str, engine: Engine) -> None:
    found = examined(CASES[name], engine)
    limits = {item.name: item for item in found.decision.limits()}
    assert name in limits, (found.verdict.failure, found.verdict.confidence, list(limits))
    assert found.verdict.confidence <= limits[name].at_most < 0.9


def test_each_limit_has_a_case_and_one_sentence() -> None:
    assert {item.name for item in LIMITS} == set(CASES)
    assert all(item.why.endswith(".") for item in LIMITS)


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


def test_done_alone_is_an_end_below_the_last_step_of_all(engine: Engine) -> None:
    def bar(step: int, ahead: str = "SFT") -> str:
        return f"{ahead}: {step}%|####| {step}/100 [00:{step % 60:02d}<00:09, 1.0it/s, loss {3 - step / 100:.2f}]\n"

    bars = "".join(bar(step) for step in range(1, 101))
    assert examined(bars + "Saving to out/model.pt\nDone!\n", engine).verdict.shows_end
    assert not examined(bars + "Saving to out/model.pt\n", engine).verdict.shows_end
    assert not examined("Done!\n" + bars, engine).verdict.shows_end
    assert not examined("".join(bar(step) for step in range(1, 90)) + "Done!\n", engine).verdict.shows_end
    of_epoch = "".join(bar(step, "Epoch 3/20") for step in range(1, 101))
    assert not examined(of_epoch + "Done!\n", engine).verdict.shows_end


def test_training_that_continues_below_a_closing_line_has_not_ended(engine: Engine) -> None:
    """It closed an epoch, or an earlier program in the same file; an evaluation's few lines may follow an end."""
    more = "".join(f"step {n} loss 2.{n}\n" for n in range(100, 140))
    assert not examined(STEPS + "Training completed!\n" + more, engine).verdict.shows_end
    assert examined(STEPS + "Training completed!\n" + more[:100], engine).verdict.shows_end
    scored = "".join(
        f"Images mAP50 mAP50-95: {n}%|#    | {n}/100 [00:12<00:09, 9.9it/s]\n" for n in range(1, 99)
    )
    assert examined(STEPS + "Training completed!\n" + scored, engine).verdict.shows_end
