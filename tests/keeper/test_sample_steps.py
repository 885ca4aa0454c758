"""Samples whose lines do not say their step get it from the bar beside them; counters continue over epochs."""

from __future__ import annotations

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


def of(log: str, seen: StepSeen) -> StepSeen:
    return replace(seen, log=log)


def hint(step: int, total: int = 40, log: str = "", *, below: bool = False) -> StepHint:
    return StepHint(0.0, 0, {"step": float(step), "total_steps": float(total)}, log, below)


Found = list[tuple[float | None, float | None]]
Scene = list[tuple[StepSeen | StepHint | None, float, Found]]
"""What is read (None: nothing), when, and the (step, loss) of the samples that are complete then."""

SCENES: dict[str, Scene] = {
    "a line gets the step of the bar that is drawn again after it": [
        (bar(3, 40), 0.0, [(3, None)]),
        (line(loss=2.5), 0.1, []),
        (bar(4, 40), 0.11, [(4, None)]),  # drawn before, known to be whole only now
        (hint(5), 0.12, [(5, 2.5)]),
    ],
    "a bar that a save wiped belongs to no line of its log": [
        (of("train.log", line(loss=5.0)), 0.0, []),
        (hint(5, log="train.log", below=True), 0.0, [(5, 5)]),
        (hint(5, log="train.log"), 0.0, []),  # the bar of the save's own shards is gone again
        (of("train.log", line(loss=10.0)), 0.0, []),
        (hint(10, log="train.log", below=True), 0.0, [(10, 10)]),
        # Where the bar has a log of its own, it may be read first.
        (hint(40, log="stderr.log"), 0.0, []),
        (of("stdout.log", line(loss=1.0)), 0.0, [(40, 1.0)]),
    ],
    "a line that no bar follows takes none of those below": [
        (of("train.log", line(accuracy=0.5)), 0.0, []),
        (of("train.log", line(loss=5.0)), 0.0, []),
        (hint(5, log="train.log", below=True), 0.0, [(None, None), (5, 5)]),
    ],
    "a bar that was drawn again long before belongs to no later line": [
        (hint(5), 0.1, []),
        (line(loss=2.5), 0.2 + WAIT_S, []),
        (hint(6), 0.21 + WAIT_S, [(6, 2.5)]),
    ],
    "the bar's file may be read first": [
        (hint(5), 0.1, []),
        (line(loss=2.5), 0.11, [(5, 2.5)]),
        (line(loss=2.4), 0.2, []),  # a hint serves one line
        (hint(10), 0.21, [(10, 2.4)]),
    ],
    "a line does not wait for ever for a bar": [
        (bar(3, 40), 0.0, [(3, None)]),
        (line(loss=2.5), 0.1, []),
        (None, 0.1 + WAIT_S / 2, []),
        (bar(7, 40), 0.2, [(7, None)]),
        (None, 0.2 + WAIT_S, [(3, 2.5)]),
        (None, 99.0, []),
    ],
    "the summary of an epoch does not wait past the bar of the next": [
        (of("train.log", bar(40, 40, epoch=1.0)), 0.0, [(40, None)]),
        (of("train.log", line(loss=2.6, epoch=1.0)), 0.0, []),
        (of("train.log", bar(40, 40, epoch=1.0)), 0.0, [(40, None)]),
        (of("train.log", bar(10, 40, epoch=2.0)), 0.0, [(40, 2.6), (50, None)]),
    ],
    "a backlog of lines and one of bars are matched in order": [
        (line(loss=1.0), 0.01, []),
        (line(loss=2.0), 0.01, []),
        (hint(5), 0.02, [(5, 1)]),
        (hint(10), 0.02, [(10, 2)]),
        (hint(15), 1.0, []),
        (hint(20), 1.0, []),
        (line(loss=3.0), 1.01, [(15, 3)]),
        (line(loss=4.0), 1.01, [(20, 4)]),
    ],
    "an evaluation's bar is not the training's": [
        (bar(20, 40), 0.0, [(20, None)]),
        (bar(5, 13), 0.1, []),
        (bar(13, 13), 0.2, []),
        (line(val_loss=1.0), 0.3, []),
        (hint(13, 13), 0.3, []),
        (hint(20), 0.3, [(20, None)]),
        (bar(40, 40), 0.5, [(40, None)]),
        (bar(1, 5), 0.6, []),  # the last evaluation
        (bar(1, 5, loss=2.0), 0.7, [(1, 2.0)]),  # another training
    ],
    "ranks are told apart": [
        (bar(3, 40), 0.0, [(3, None)]),
        (StepSeen(0.0, 1, {"loss": 1.0}, from_telemetry=False), 0.0, []),
        (bar(4, 40), 0.1, [(4, None)]),
        (None, 9.0, [(None, 1.0)]),
    ],
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_a_line_without_a_step_gets_it_from_the_bar_beside_it(scene: Scene) -> None:
    sense = StepSense()
    for place, (read, at, found) in enumerate(scene):
        match read:
            case StepSeen():
                samples = sense.take(read, at)
            case StepHint():
                samples = sense.hint(read, at)
            case None:
                samples = sense.due(at)
        assert [(one.values.get("step"), one.values.get("loss")) for one in samples] == found, place


def test_a_counter_that_starts_again_says_no_step_of_the_lines_below() -> None:
    """`Batch 9` of each epoch, and the loss of the epoch on a line of its own."""
    sense = StepSense()
    found = []
    for epoch in (1, 2, 3):
        for number in range(10):
            list(sense.take(line(step=float(number)), 0.0))
        found += list(sense.take(line(loss=3.0 - epoch, epoch=float(epoch)), 0.0))
    assert [one.values.get("step") for one in found] == [9, None, None]


def test_a_shorter_bar_beside_which_losses_are_printed_is_that_of_another_training() -> None:
    sense = StepSense()
    list(sense.take(bar(20, 40), 0.0))
    for at in (1.0, 2.0):
        assert not list(sense.take(bar(5, 39), at))
        list(sense.take(line(loss=2.0), at))
        list(sense.due(at + 9.0, final=True))
    assert list(sense.take(bar(6, 39), 3.0))
    assert not list(sense.take(bar(3, 13), 4.0)), "its evaluation"


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
