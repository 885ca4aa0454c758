"""Whether a script's last words close its training."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.closing_lines import is_closing
from supervisor.sources.signature_files import Engine
from tests.corpus.scoring import examined

STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(10, 60))


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-01 19:22:37] Done!",
        "INFO - run.py - 2026-01-01 15:31:54,286 - Finished after 800000 iterations.",
        "Training time 21:51:05",
        "Early stopping triggered at epoch 1235. Best val RMSE: 119.963",
        "10:00:00 INFO root: Finished",
        "===> Training loop done <===",
        "Experiment completed: run7, 2026-06-05",
        "Finished 30 epochs",
        "Early Stopping....@ 72 epoch for patience @ 10.0",
        "[Finished in 1928.4s]",
        "Early terminate",
        "[EARLY STOP] Validation did not improve for 10 epochs.",
        "Stopping iteration because the model did not get better in the last 25 epochs",
        "Training took 1.5 hours",
        "total execution time: 32.3 min",
        "✅ 训练全部完成",
        "終了",
    ],
)
def test_last_words(line: str) -> None:
    assert is_closing(line)


@pytest.mark.parametrize(
    "line",
    [
        "Loading dataset: done in 3 s",
        "Saving model done",
        "Epoch 3 finished",
        "training will be done in 2 h",
        "Evaluation finished",
        "early_stopping_patience: 10",
        "EarlyStopping counter: 3 out of 7",
        "not finished training",
        "stopping criterion: 25 epochs",
        "early stop patience 10",
        "train end to end",
        "training on the end of the week",
        "DataLoader ready, training starts over",
    ],
)
def test_words_of_something_else(line: str) -> None:
    assert not is_closing(line)


def test_what_is_printed_once_below_the_last_step_closes_the_training(engine: Engine) -> None:
    assert examined(STEPS + "best step 40\nDone.\n", engine).verdict.shows_end
    assert not examined("Done.\n" + STEPS, engine).verdict.shows_end, "it had loaded its data"
    between = STEPS.replace("step 30 ", "Done.\nstep 30 ")
    assert not examined(between + "Done.\n", engine).verdict.shows_end, "it closes each epoch"


def test_an_evaluation_or_a_save_below_the_last_words_is_no_step(engine: Engine) -> None:
    after = "Test: [5/6] loss: 654.3 eta: 0:00:00\nLast checkpoint saved at out/last.pth (epoch=299)\n"
    assert examined(STEPS + "Training time 21:51:05\n" + after, engine).verdict.shows_end


def test_counters_well_below_their_total_need_more_than_a_word(engine: Engine) -> None:
    bars = "".join(f"epoch 3/20 step {n}/100 loss 2.{n}\n" for n in range(10, 90))
    assert not examined(bars + "Done!\n", engine).verdict.shows_end
    assert examined(bars + "Early stopping at epoch 3\n", engine).verdict.shows_end
