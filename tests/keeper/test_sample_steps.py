"""Samples whose lines do not say their step get it from the bar beside them; counters continue over epochs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from supervisor.keeper.monitoring.observations import StepHint, StepSeen
from supervisor.keeper.recording.sample_steps import WAIT_S, StepSense
from supervisor.sources.metrics import MetricReader
from tests.conftest import not_none


def bar(step: int, total: int, **values: float) -> StepSeen:
    said = {"step": float(step), "total_steps": float(total), **values}
    return StepSeen(0.0, 0, said, from_telemetry=False, drawn=True)


def line(**values: float) -> StepSeen:
    return StepSeen(0.0, 0, values, from_telemetry=False)


def shown(samples: Iterable[StepSeen]) -> list[tuple[float | None, float | None]]:
    return [(seen.values.get("step"), seen.values.get("loss")) for seen in samples]


def hint(step: int, total: int = 40) -> StepHint:
    return StepHint(0.0, 0, {"step": float(step), "total_steps": float(total)})


def test_a_line_gets_the_step_of_the_bar_that_is_drawn_again_after_it() -> None:
    sense = StepSense()
    assert shown(sense.take(bar(3, 40), 0.0)) == [(3, None)]
    assert shown(sense.take(line(loss=2.5), 0.1)) == []
    assert shown(sense.take(bar(4, 40), 0.11)) == [(4, None)]  # drawn before, known to be whole only now
    assert shown(sense.hint(hint(5), 0.12)) == [(5, 2.5)]


def test_a_bar_that_a_save_wiped_is_of_no_line_of_its_log() -> None:
    sense = StepSense()
    found = []
    for step in range(5, 45, 5):
        found += shown(sense.take(replace(line(loss=float(step)), log="train.log"), 0.0))
        found += shown(sense.hint(replace(hint(step), log="train.log", below=True), 0.0))
        if step % 20 == 0:  # the bar of the save's own shards is gone again
            found += shown(sense.hint(replace(hint(step), log="train.log"), 0.0))
    assert found == [(step, step) for step in range(5, 45, 5)]
    # Where the bar has a log of its own, it may be read first.
    assert shown(sense.hint(replace(hint(40), log="stderr.log"), 0.0)) == []
    assert shown(sense.take(replace(line(loss=1.0), log="stdout.log"), 0.0)) == [(40, 1.0)]


def test_a_line_that_no_bar_follows_takes_none_of_those_below() -> None:
    """What a program prints before its bar is drawn, numbers as they are."""
    sense = StepSense()
    assert shown(sense.take(replace(line(accuracy=0.5), log="train.log"), 0.0)) == []
    found = []
    for step in (5, 10):
        found += shown(sense.take(replace(line(loss=float(step)), log="train.log"), 0.0))
        found += shown(sense.hint(replace(hint(step), log="train.log", below=True), 0.0))
    assert found == [(None, None), (5, 5), (10, 10)]


def test_the_bars_file_may_be_read_first() -> None:
    sense = StepSense()
    assert shown(sense.hint(hint(5), 0.1)) == []
    assert shown(sense.take(line(loss=2.5), 0.11)) == [(5, 2.5)]
    assert shown(sense.take(line(loss=2.4), 0.2)) == []  # a hint serves one line
    assert shown(sense.hint(hint(10), 0.21)) == [(10, 2.4)]


def test_a_line_does_not_wait_for_ever_for_a_bar() -> None:
    sense = StepSense()
    list(sense.take(bar(3, 40), 0.0))
    list(sense.take(line(loss=2.5), 0.1))
    assert shown(sense.due(0.1 + WAIT_S / 2)) == []
    list(sense.take(bar(7, 40), 0.2))
    assert shown(sense.due(0.2 + WAIT_S)) == [(3, 2.5)]
    assert shown(sense.due(99.0)) == []


def test_the_summary_of_an_epoch_does_not_wait_past_the_bar_of_the_next() -> None:
    sense = StepSense()
    list(sense.take(replace(bar(40, 40, epoch=1.0), log="train.log"), 0.0))
    assert shown(sense.take(replace(line(loss=2.6, epoch=1.0), log="train.log"), 0.0)) == []
    assert shown(sense.take(replace(bar(40, 40, epoch=1.0), log="train.log"), 0.0)) == [(40, None)]
    after = shown(sense.take(replace(bar(10, 40, epoch=2.0), log="train.log"), 0.0))
    assert after == [(40, 2.6), (50, None)]


def test_a_counter_that_starts_again_says_no_step_of_the_lines_below() -> None:
    """`Batch 9` of each epoch, and the loss of the epoch on a line of its own."""
    sense = StepSense()
    found = []
    for epoch in (1, 2, 3):
        found += [one for n in range(10) for one in shown(sense.take(line(step=float(n)), 0.0))][:1]
        found += shown(sense.take(line(loss=3.0 - epoch, epoch=float(epoch)), 0.0))
    assert found == [(0, None), (9, 2.0), (0, None), (None, 1.0), (0, None), (None, 0.0)]


def test_a_backlog_of_lines_and_one_of_bars_are_matched_in_order() -> None:
    sense = StepSense()
    for number in range(1, 4):
        list(sense.take(line(loss=float(number)), 0.01))
    assert [shown(sense.hint(hint(5 * n), 0.02)) for n in range(1, 4)] == [[(5 * n, n)] for n in range(1, 4)]
    for number in range(4, 6):
        list(sense.hint(hint(5 * number), 1.0))
    assert [shown(sense.take(line(loss=float(n)), 1.01)) for n in (4, 5)] == [[(20, 4)], [(25, 5)]]


def test_an_evaluations_bar_is_not_the_trainings() -> None:
    sense = StepSense()
    list(sense.take(bar(20, 40), 0.0))
    assert shown(sense.take(bar(5, 13), 0.1)) == []
    assert shown(sense.take(bar(13, 13), 0.2)) == []
    list(sense.take(line(val_loss=1.0), 0.3))
    assert shown(sense.hint(hint(13, 13), 0.3)) == []
    assert shown(sense.hint(hint(20), 0.3)) == [(20, None)]
    list(sense.take(bar(40, 40), 0.5))
    assert shown(sense.take(bar(1, 5), 0.6)) == [], "the last evaluation"
    assert shown(sense.take(bar(1, 5, loss=2.0), 0.7)) == [(1, 2.0)], "another training"


def test_a_shorter_bar_beside_which_losses_are_printed_is_that_of_another_training() -> None:
    sense = StepSense()
    list(sense.take(bar(20, 40), 0.0))
    for at in (1.0, 2.0):
        assert shown(sense.take(bar(5, 39), at)) == []
        list(sense.take(line(loss=2.0), at))
        list(sense.due(at + 9.0, final=True))
    assert shown(sense.take(bar(6, 39), 3.0)) == [(6, None)]
    assert shown(sense.take(bar(3, 13), 4.0)) == [], "its evaluation"
    list(sense.take(line(loss=2.0), 4.0))
    list(sense.take(bar(7, 39), 4.1))
    list(sense.take(bar(13, 13), 4.2))
    list(sense.take(line(loss=2.0), 4.3))
    assert shown(sense.take(bar(3, 13), 5.0)) == [], "one loss between two states of the training's"


def test_ranks_are_told_apart() -> None:
    sense = StepSense()
    list(sense.take(bar(3, 40), 0.0))
    other = StepSeen(0.0, 1, {"loss": 1.0}, from_telemetry=False)
    assert shown(sense.take(other, 0.0)) == []
    assert shown(sense.take(bar(4, 40), 0.1)) == [(4, None)]
    assert shown(sense.due(9.0)) == [(None, 1.0)]


def test_only_the_time_that_its_line_does_not_explain_is_doubted() -> None:
    reader = MetricReader()
    plain = {
        "[100/1000] loss : 0.3 | time : 4.82s": True,
        "[100/1000] loss: 0.3 | time: 4.82 (4.81)": False,
        "[100/1000] loss: 0.3, time: 4.82, data_time: 0.01": False,
        "[100/1000] loss: 0.3, time: 482.1ms": False,
        "[100/1000] loss: 0.3, step_time: 4.82": False,
        "[100/1000] loss: 0.3, time: 0.48, 133.1 img/s": False,
    }
    for text, doubted in plain.items():
        sample = not_none(reader.feed(text))
        assert "step_time_s" in sample.values
        assert sample.plain_time is doubted, text


# -- counters that start again with each epoch ---------------------------------------------------------

Said = tuple[float, float] | tuple[float, float, float]


def counted(*said: Said, sense: StepSense | None = None, **values: float) -> list[tuple[float, float | None]]:
    """(step, total) as they are counted on, of (step, total) or (step, total, epoch) as a log says them."""
    sense = sense or StepSense()
    found = []
    for step, total, *epoch in said:
        named = {"epoch": epoch[0]} if epoch else {}
        seen = line(step=step, total_steps=total, loss=1.0, **named, **values)
        found += [(one.values["step"], one.values.get("total_steps")) for one in sense.take(seen, 0.0)]
    return found


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([(9, 10), (10, 10), (1, 10)], [(9, 10), (10, 10), (11, None)]),
        ([(10, 10), (6, 10)], [(10, 10), (6, 10)]),  # a late rank's
        ([(9, 10), (1, 10)], [(9, 10), (1, 10)]),  # it was not full
        ([(10, 10), (1, 12), (12, 12), (1, 12)], [(10, 10), (11, None), (22, None), (23, None)]),
        ([(10, 10), (1, 13)], [(10, 10), (1, 13)]),  # another counter
        ([(11, 10), (-1, 10), (0, 10)], [(11, 10), (-1, 10), (0, 10)]),
        ([(9, 10, 0), (1, 10, 1)], [(9, 10), (11, None)]),
        ([(9, 10, 1), (1, 10, 2), (2, 10, 4)], [(9, 10), (11, None), (32, None)]),
        ([(9, 10, 0), (19, 20, 1)], [(9, 10), (19, 20)]),  # another counter
        ([(5, 100, 0), (15, 100, 1)], [(5, 100), (15, 100)]),  # one of the whole training
        ([(9, 10, 3), (1, 10, 4)], [(9, 10), (41, None)]),  # begun in the middle: counted from 0
        ([(10, 10, 0), (0, 10, 0), (1, 10, 1)], [(10, 10), (10, None), (11, None)]),  # before the next name
        ([(10, 10, 1), (10, 10, 2)], [(10, 10), (20, None)]),  # full before the last epoch: the epoch's
        ([(100, 101, 0), (10, 98, 1), (10, 103, 2)], [(100, 101), (108, None), (216, None)]),
        (
            [(60, 64, 1), (60, 192, 1), (16, 64, 2), (80, 192, 2)],
            [(60, 64), (60, 192), (80, None), (80, 192)],
        ),
        ([(1, 10, 0.5), (1, 10, float("nan"))], [(1, 10), (1, 10)]),
    ],
)
def test_a_counter_that_begins_again_counts_on(
    said: list[Said], found: list[tuple[float, float | None]]
) -> None:
    assert counted(*said) == found


def test_the_total_is_that_of_all_epochs_where_their_number_is_known() -> None:
    said = [(5.0, 10.0, 1.0), (9.0, 10.0, 1.0), (5.0, 10.0, 2.0)]
    assert counted(*said, total_epochs=5.0) == [(5, 10), (9, 10), (15, 50)]
    beyond = [(step, 128.0, float(epoch)) for epoch in range(4) for step in (1.0, 128.0)]
    assert counted(*beyond, total_epochs=3.0)[-1] == (512, 512), "never less than the step"


def test_the_next_attempt_knows_what_its_counters_count() -> None:
    sense = StepSense()
    counted((9, 10, 0), (1, 10, 1), sense=sense)
    sense.begin()
    assert counted((1, 20, 2), sense=sense) == [(41, None)], (
        "epochs twice as long, of the smaller micro-batch"
    )
    unsure = StepSense()
    counted((5, 100, 0), (15, 100, 1), sense=unsure)
    unsure.begin()
    assert counted((1, 20, 2), sense=unsure) == [(1, 20)]


def test_passes_are_not_counted_where_not_all_lines_were_kept() -> None:
    """Of a long log a part is kept: the 47 passes seen are not the 300 there were."""
    assert counted((1, 31), (31, 31), (1, 31), (31, 31), reading=7.0)[-1] == (31, 31)


def test_a_line_that_names_the_epoch_heads_the_bar_below_it() -> None:
    sense = StepSense()
    list(sense.take(line(epoch=1.0, total_epochs=3.0), 0.0))
    counted((50, 103), (103, 103), sense=sense)
    list(sense.take(line(epoch=2.0, total_epochs=3.0), 0.0))
    (seen,) = sense.take(bar(1, 103, loss=1.0, eta_s=5.0), 0.0)
    printed = {"epoch": 2, "total_epochs": 3, "epoch_step": 1, "epoch_steps": 103}
    assert seen.values == {"step": 104, "total_steps": 309, "loss": 1, **printed}, (
        "what is left was the epoch's"
    )
