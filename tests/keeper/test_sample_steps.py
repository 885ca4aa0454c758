"""Samples whose lines do not say their step get it from the bar beside them; counters continue over epochs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from supervisor.keeper.monitoring.observations import StepHint, StepSeen
from supervisor.keeper.recording.sample_steps import WAIT_S, StepSense
from supervisor.run.series import READING
from supervisor.sources.metrics import MetricReader


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


def test_lines_that_were_written_in_blocks_stand_below_all_their_bars() -> None:
    sense = StepSense()
    found = shown(sense.take(replace(line(accuracy=0.5), log="train.log"), 0.0))
    for block in ((5, 10, 15), (20, 25)):
        for step in block:
            found += shown(sense.hint(replace(hint(step), log="train.log"), 0.0))
        for step in block:
            found += shown(sense.take(replace(line(loss=float(step)), log="train.log"), 0.0))
    assert found == [(None, None), *((step, step) for step in (5, 10, 15, 20, 25))]


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


def test_a_line_does_not_wait_past_the_next_loss_of_its_log() -> None:
    """A summary of the epoch before is not the newest loss."""
    sense = StepSense()
    list(sense.take(replace(bar(30, 40, loss=2.5), log="train.log"), 0.0))
    assert shown(sense.take(replace(line(loss=2.6), log="train.log"), 0.0)) == []
    after = shown(sense.take(replace(bar(10, 40, epoch=2, loss=2.4), log="train.log"), 0.0))
    assert after == [(30, 2.6), (10, 2.4)]
    assert shown(sense.due(99.0)) == []


def test_lines_that_waited_for_a_first_step_come_before_those_that_have_it() -> None:
    """A collector puts each state of the bar on a line of its own; of a backlog the first states may be left out."""
    sense = StepSense()
    assert shown(sense.take(replace(line(loss=2.5), log="output.log"), 0.0)) == []
    list(sense.take(replace(bar(30, 40), log="output.log", drawn=False, bar=True), 0.0))
    after = shown(sense.take(replace(line(loss=2.4), log="output.log"), 0.0))
    assert after == [(None, 2.5), (30, 2.4)]
    assert shown(sense.due(99.0)) == []


def test_the_summary_of_an_epoch_does_not_wait_past_the_bar_of_the_next() -> None:
    sense = StepSense()
    list(sense.take(replace(bar(40, 40, epoch=1.0), log="train.log"), 0.0))
    assert shown(sense.take(replace(line(loss=2.6, epoch=1.0), log="train.log"), 0.0)) == []
    assert shown(sense.take(replace(bar(40, 40, epoch=1.0), log="train.log"), 0.0)) == [(40, None)]
    after = shown(sense.take(replace(bar(10, 40, epoch=2.0), log="train.log"), 0.0))
    assert after == [(40, 2.6), (50, None)]


def test_a_bar_that_comes_too_late_is_not_taken_for_the_next_lines() -> None:
    sense = StepSense()
    list(sense.take(bar(3, 40), 0.0))
    list(sense.take(line(loss=2.5), 0.1))
    assert shown(sense.due(1.5)) == [(3, 2.5)]
    assert shown(sense.hint(hint(5), 1.6)) == []
    assert shown(sense.take(line(loss=2.4), 1.7)) == []
    assert shown(sense.hint(hint(10), 4.0)) == [(10, 2.4)]


def test_at_the_end_nothing_waits() -> None:
    sense = StepSense()
    list(sense.take(bar(7, 40), 99.0))
    list(sense.take(line(loss=2.4), 100.0))
    assert shown(sense.due(100.0, final=True)) == [(7, 2.4)]


def test_without_bars_the_step_of_the_line_before_holds() -> None:
    sense = StepSense()
    list(sense.take(line(step=10.0), 0.0))
    assert shown(sense.take(line(loss=2.5), 0.0)) == [(10, 2.5)]


def test_a_counter_that_starts_again_says_no_step_of_the_lines_below() -> None:
    """`Batch 9` of each epoch, and the loss of the epoch on a line of its own."""
    sense = StepSense()
    found = []
    for epoch in (1, 2, 3):
        found += [one for n in range(10) for one in shown(sense.take(line(step=float(n)), 0.0))][:1]
        found += shown(sense.take(line(loss=3.0 - epoch, epoch=float(epoch)), 0.0))
    assert found == [(0, None), (9, 2.0), (0, None), (None, 1.0), (0, None), (None, 0.0)]


def test_where_nothing_names_a_step_it_stays_unknown() -> None:
    sense = StepSense()
    assert shown(sense.take(line(loss=2.5), 0.0)) == []
    assert shown(sense.take(line(loss=2.4), 1.0)) == []
    assert shown(sense.due(9.0)) == [(None, 2.5), (None, 2.4)]


def test_lines_of_a_backlog_are_not_all_put_at_the_step_where_it_stands_now() -> None:
    sense = StepSense()
    list(sense.take(bar(0, 40), 0.0))
    for number in range(3):
        assert shown(sense.take(line(loss=float(number)), 0.01)) == []
    assert shown(sense.due(9.0)) == [(None, 0.0), (None, 1.0), (0, 2.0)]


def test_a_backlog_of_lines_and_one_of_bars_are_matched_in_order() -> None:
    sense = StepSense()
    for number in range(1, 4):
        list(sense.take(line(loss=float(number)), 0.01))
    assert [shown(sense.hint(hint(5 * n), 0.02)) for n in range(1, 4)] == [[(5 * n, n)] for n in range(1, 4)]
    for number in range(4, 6):
        list(sense.hint(hint(5 * number), 1.0))
    assert [shown(sense.take(line(loss=float(n)), 1.01)) for n in (4, 5)] == [[(20, 4)], [(25, 5)]]


def test_a_counter_that_starts_again_each_epoch_goes_on() -> None:
    sense = StepSense()
    said = [bar(n, 10, epoch=float(e)) for e in range(3) for n in (1, 10)]
    steps = [seen.values for one in said for seen in sense.take(one, 0.0)]
    assert [v["step"] for v in steps] == [1, 10, 11, 20, 21, 30]
    # How many epochs there are is not known, so the total is not either.
    assert [v.get("total_steps") for v in steps] == [10, 10, None, None, None, None]
    sense.begin()  # restarted in epoch 2: what was learnt holds
    assert shown(sense.take(bar(4, 10, epoch=2.0, total_epochs=5.0), 0.0)) == [(24, None)]


def test_epochs_that_a_smaller_micro_batch_made_longer_are_counted_on_from_the_first_line() -> None:
    """Lightning's bar counts micro-batches; resumed at the end of the first epoch it begins with the second."""
    sense = StepSense()
    for epoch, step in ((0, 1), (0, 20), (1, 1), (1, 11)):
        list(sense.take(bar(step, 20, epoch=float(epoch)), 0.0))
    sense.begin()
    said = [bar(1, 40, epoch=1.0), bar(40, 40, epoch=1.0), bar(1, 40, epoch=2.0)]
    assert [step for one in said for step, _ in shown(sense.take(one, 0.0))] == [41, 80, 81]


def test_a_counter_of_another_length_is_left_alone_where_one_counted_the_whole_training() -> None:
    sense = StepSense()
    for epoch, step, n in ((0, 1, 1), (0, 20, 20), (1, 1, 21)):
        list(sense.take(bar(step, 20, epoch=float(epoch)), 0.0))
        list(sense.take(line(step=float(n), total_steps=1000.0, epoch=float(epoch)), 0.0))
    sense.begin()
    assert shown(sense.take(line(step=21.0, total_steps=2000.0, epoch=1.0, loss=2.0), 0.0)) == [(21, 2.0)]


def test_epochs_counted_from_one_and_how_many_there_are() -> None:
    sense = StepSense()
    said = [line(step=n, total_steps=10.0, epoch=e, total_epochs=5.0) for e in (1.0, 2.0) for n in (5.0, 9.0)]
    steps = [seen.values for one in said for seen in sense.take(one, 0.0)]
    assert [(v["step"], v["total_steps"]) for v in steps] == [(5, 10), (9, 10), (15, 50), (19, 50)]


def test_a_global_counter_beside_an_epoch_is_left_alone() -> None:
    sense = StepSense()
    said = [line(step=n * 100.0, total_steps=1000.0, epoch=float(n // 3)) for n in range(10)]
    steps = [seen.values for one in said for seen in sense.take(one, 0.0)]
    assert [(v["step"], v["total_steps"]) for v in steps] == [(n * 100, 1000) for n in range(10)]


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


def test_a_bar_around_those_of_the_epochs_gives_no_step() -> None:
    sense = StepSense()
    for epoch in (1.0, 2.0):
        list(sense.take(bar(48, 96, epoch=epoch), 0.0))
        list(sense.take(bar(96, 96, epoch=epoch), 0.0))
    outer = bar(2, 10, loss=0.5, step_time_s=52.0)
    found = [*sense.take(outer, 0.0), *sense.due(9.0, final=True)]
    assert [(seen.values.get("step"), seen.values["loss"]) for seen in found] == [(192, 0.5)]
    assert "step_time_s" not in found[0].values


def test_an_evaluations_bar_on_a_line_of_its_own_is_not_the_trainings() -> None:
    """As a collector writes it that puts each state on a line."""
    sense = StepSense()
    found = []
    for seen in (bar(20, 200), bar(2, 25), bar(25, 25), bar(22, 200)):
        found += shown(sense.take(replace(seen, drawn=False, bar=True), 0.0))
    assert found == [(20, None), (22, None)]


def test_ranks_are_told_apart() -> None:
    sense = StepSense()
    list(sense.take(bar(3, 40), 0.0))
    other = StepSeen(0.0, 1, {"loss": 1.0}, from_telemetry=False)
    assert shown(sense.take(other, 0.0)) == []
    assert shown(sense.take(bar(4, 40), 0.1)) == [(4, None)]
    assert shown(sense.due(9.0)) == [(None, 1.0)]


def test_a_bar_over_an_epoch_and_lines_over_the_training_are_two_counters() -> None:
    sense = StepSense()

    def of(epoch: int, step: int, total: int) -> list[float]:
        said = {"epoch": float(epoch), "step": float(step), "total_steps": float(total), "loss": 1.0}
        seen = StepSeen(0.0, 0, said, from_telemetry=False, drawn=True)
        return [one.values["step"] for one in sense.take(seen, 0.0)]

    assert of(1, 60, 64) == [60]
    assert of(1, 60, 192) == [60]
    assert of(2, 16, 64) == [80]
    assert of(2, 80, 192) == [80]
    assert of(3, 60, 64) == [188]
    assert of(3, 180, 192) == [180]


def test_epochs_of_unlike_lengths_are_one_counter() -> None:
    sense = StepSense()

    def of(epoch: int, step: int, total: int) -> list[float]:
        said = {"epoch": float(epoch), "step": float(step), "total_steps": float(total), "loss": 1.0}
        return [one.values["step"] for one in sense.take(StepSeen(0.0, 0, said, from_telemetry=False), 0.0)]

    assert of(0, 100, 101) == [100]
    assert of(1, 10, 98) == [108]
    assert of(2, 10, 103) == [216]


def counted(sense: StepSense, *states: tuple[int, int], **values: float) -> list[float]:
    said = (
        {"step": float(step), "total_steps": float(total), "loss": 1.0, **values} for step, total in states
    )
    taken = (
        one
        for values in said
        for one in sense.take(StepSeen(0.0, 0, values, from_telemetry=False, drawn=True), 0.0)
    )
    return [one.values["step"] for one in taken]


def test_a_bar_an_epoch_without_a_word_of_epochs_counts_on() -> None:
    sense = StepSense()
    assert counted(sense, (1, 103), (60, 103), (103, 103), (103, 103)) == [1, 60, 103, 103]
    assert counted(sense, (0, 103), (70, 103), (103, 103)) == [103, 173, 206]
    assert counted(sense, (2, 103), (103, 103)) == [208, 309]
    assert counted(sense, (1, 99), (99, 99), (1, 101)) == [310, 408, 409]  # epochs of other lengths


def test_a_late_rank_or_a_start_anew_is_no_next_epoch() -> None:
    sense = StepSense()
    assert counted(sense, (39, 40), (40, 40), (38, 40), (40, 40)) == [39, 40, 38, 40]
    sense = StepSense()
    assert counted(sense, (30, 100), (1, 100)) == [30, 1]


def test_a_line_that_names_the_epoch_heads_the_bar_below_it() -> None:
    sense = StepSense()
    list(sense.take(line(epoch=1.0, total_epochs=3.0), 0.0))
    assert counted(sense, (50, 103), (103, 103)) == [50, 103]
    list(sense.take(line(epoch=2.0, total_epochs=3.0), 0.0))
    (seen,) = sense.take(bar(1, 103, loss=1.0), 0.0)
    printed = {"epoch": 2, "total_epochs": 3, "epoch_step": 1, "epoch_steps": 103}
    assert seen.values == {"step": 104, "total_steps": 309, "loss": 1, **printed}


def test_a_total_is_never_less_than_the_step() -> None:
    sense = StepSense()
    for epoch in range(4):
        for step in (1, 128):
            (seen,) = sense.take(bar(step, 128, epoch=float(epoch), total_epochs=3.0), 0.0)
    assert (seen.values["step"], seen.values["total_steps"]) == (512, 512)


def test_a_heading_waits_for_no_bar() -> None:
    sense = StepSense()
    list(sense.take(bar(103, 103), 0.0))
    (seen,) = sense.take(line(epoch=2.0, total_epochs=3.0), 0.1)
    assert seen.values == {"epoch": 2, "total_epochs": 3, "step": 103}


def test_a_bar_that_goes_back_before_it_bears_the_next_epochs_name() -> None:
    sense = StepSense()

    def of(epoch: int, step: int) -> float:
        (seen,) = sense.take(bar(step, 32, epoch=float(epoch), loss=1.0), 0.0)
        return seen.values["step"]

    assert [of(0, 0), of(0, 20), of(0, 32)] == [0, 20, 32]
    assert [of(0, 0), of(1, 1), of(1, 32)] == [32, 33, 64]
    assert [of(1, 0), of(1, 0), of(2, 1), of(2, 32)] == [64, 64, 65, 96]


def test_a_line_that_no_bar_follows_stands_where_the_last_bar_stood() -> None:
    sense = StepSense()
    list(sense.take(bar(10, 30), 0.0))
    list(sense.take(line(loss=2.5), 0.1))
    assert shown(sense.hint(hint(25, 30), 0.1)) == [(25, 2.5)]
    list(sense.take(line(loss=2.4), 0.2))
    assert shown(sense.due(0.2, final=True)) == [(25, 2.4)]


def test_an_epoch_from_a_heading_above_is_marked_as_no_news() -> None:
    """The loss waits for its step while the next training's heading comes: where the job is, that one says."""
    sense = StepSense()
    list(sense.take(line(epoch=10.0, total_epochs=10.0), 0.0))
    list(sense.take(line(loss=0.1), 0.1))
    list(sense.take(line(epoch=1.0, total_epochs=10.0), 0.2))
    (waited,) = sense.due(5.0)
    assert (waited.values["epoch"], waited.headed) == (10.0, True)


def test_passes_of_a_bar_are_not_counted_where_not_all_lines_were_kept() -> None:
    """Of a long log a part is kept: the 47 passes seen are not the 300 there were."""
    sense = StepSense()
    for _ in range(3):
        list(sense.take(bar(1, 31, loss=1.0, reading=7.0), 0.0))
        (seen,) = sense.take(bar(31, 31, loss=1.0, reading=8.0), 0.0)
    assert (seen.values["step"], seen.values["total_steps"]) == (31.0, 31.0)


def times(
    *lines: tuple[float, float], numbers: Iterable[float] = (), epochs: Sequence[float] = ()
) -> list[float | None]:
    """Of lines with a step and a time, what is taken for the time of one step. `numbers`: those of the readings, of a backlog."""
    sense = StepSense()
    found: list[float | None] = []
    numbered: list[float | None] = [*numbers]
    numbered += [None] * (len(lines) - len(numbered))
    for row, ((step, took), number) in enumerate(zip(lines, numbered, strict=True)):
        values = {"step": step, "step_time_s": took, "loss": 1.0}
        values |= {} if number is None else {READING: number}
        values |= {"epoch": epochs[row]} if epochs else {}
        samples = sense.take(replace(line(**values), plain_time=True), 0.0)
        found += [seen.values.get("step_time_s") for seen in samples]
    return found


def test_a_plain_time_is_that_of_a_step_where_each_step_has_a_line() -> None:
    assert times((1, 0.5), (2, 0.4), (3, 0.4)) == [None, 0.4, 0.4]
    # Of a backlog a part is kept: the numbers of its readings show how many lines there were.
    assert times((1, 0.5), (20, 0.4), numbers=(1, 20)) == [None, 0.4]


def test_a_plain_time_far_longer_than_that_of_the_first_step_is_of_all_since_the_line_before() -> None:
    assert times((0, 0.16), (100, 4.5), (200, 5.0)) == [None, 0.045, 0.05]
    assert times((1, 0.16), (100, 4.95), (300, 10.0), numbers=(1, 2, 4)) == [None, 0.05, 0.1]


def test_a_plain_time_of_a_line_every_so_many_steps_may_be_either() -> None:
    assert times((0, 1.5), (100, 1.2), (200, 0.25)) == [None, None, None]
    assert times((20, 8.6), (40, 8.5), (20, 8.6), (40, 8.5)) == [None, None, None, None]
    # Of a backlog lines of different epochs may follow each other: their steps are not apart.
    assert times((10, 0.9), (20, 0.8), (30, 0.7), numbers=(1, 90, 180), epochs=(1, 2, 3)) == [
        None,
        None,
        None,
    ]
    # 5000 steps are not made in 5 ms.
    assert times((5000, 0.005), (10000, 0.005)) == [None, 0.005]


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
        sample = reader.feed(text)
        assert sample is not None
        assert "step_time_s" in sample.values
        assert sample.columns.plain_time is doubted, text
