"""Whether a script's last words close its training."""

from __future__ import annotations

from supervisor.sources.signature_files import Engine
from tests.corpus.scoring import examined

STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(10, 60))


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
