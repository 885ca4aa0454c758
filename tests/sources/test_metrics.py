"""Metrics are read out of lines by grammar: units, ranks, tables, blocks, headings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.sources.metrics import MetricReader
from supervisor.sources.metrics.values import GIB, seconds
from tests.sources.metric_lines import values


def test_values_are_in_base_units() -> None:
    found = values(
        "step 120/5000 | loss 2.41 | lr 3.0e-4 | 45.2K tok/s | 812 ms/step | max mem 4096MB | mfu 41.5% | eta 1:02:03"
    )
    assert found == {
        "step": 120,
        "total_steps": 5000,
        "loss": 2.41,
        "lr": 3.0e-4,
        "tokens_per_sec": pytest.approx(45200),
        "step_time_s": pytest.approx(0.812),
        "memory_used_bytes": pytest.approx(4 * GIB),
        "mfu": pytest.approx(0.415),
        "eta_s": 3723,
    }
    assert isinstance(found["step"], int)


def test_nan_and_infinity_are_values() -> None:
    found = values("step 7 | loss: nan | grad_norm: inf")
    assert math.isnan(found["loss"])
    assert math.isinf(found["grad_norm"])


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[rank2]: step 12 loss 2.1", 2),
        ("[default3]:step 12 loss 2.1", 3),
        (" 5: step 12 loss 2.1", 5),
        ("[Rank 6] step=12 loss=2.3", 6),
        ("[gpu01:1/8] step=12 loss=2.3", 1),
        ("step=12 loss=2.3", None),
        ("1: 803.281982, 803.281982 avg, 0.000000 rate, 4.211873 seconds, 64 images", None),
    ],
)
def test_the_rank_is_what_the_line_says(line: str, rank: int | None) -> None:
    reader = MetricReader()
    for _ in range(2):  # by grammar, then by shape
        sample = reader.feed(line)
        assert sample is not None
        assert sample.rank == rank


def test_tables_are_read_under_their_header() -> None:
    reader = MetricReader()
    lines = [
        "epoch,step,train_loss,val_loss",
        "0,49,2.3011,",
        "1,149,nan,1.5",
        "some words",
        "2,249,1.5,1.25",
    ]
    found = [reader.feed(line) for line in lines]
    assert [None if s is None else s.step for s in found] == [None, 49, 149, None, 249]
    last = found[-1]
    assert last is not None
    assert last.values == {"epoch": 2, "step": 249, "loss": 1.5, "val_loss": 1.25}


def test_a_traceback_says_nothing_until_it_ends() -> None:
    reader = MetricReader()
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "    step, loss = 3, 0.5",
        "RuntimeError: loss = nan, step = 1200",
        "step 1200 loss 0.5",
    ]
    found = [reader.feed(line) for line in lines]
    assert found[:-1] == [None] * 4
    assert found[-1] is not None


def test_what_stands_below_a_test_heading_is_no_training_loss() -> None:
    reader = MetricReader()
    for _ in range(3):
        found = [
            reader.feed(line) for line in ("loss: 2.3  [  640/60000]", "Test Error: ", " Avg loss: 2.1 ")
        ]
        assert [None if one is None else one.values for one in found] == [
            {"loss": 2.3},
            None,
            {"val_loss": 2.1},
        ]
    for key in ("val:", "TEST:"):
        block = [reader.feed(line) for line in (key, "  batch: 2", "  loss: 0.5", "", "other: {}")]
        assert block == [None] * 5
        below = reader.feed("loss: 0.3125")
        assert below is not None
        assert below.values == {"loss": 0.3125}, "a key of settings heads no values"


def test_losses_of_several_parts_report_below_a_line_with_the_counter() -> None:
    reader = MetricReader()
    found = reader.feed("Generator Loss: 1303.9308, Discriminator Loss: 516.3393")
    assert found is not None
    assert (found.values, found.other) == ({}, {"Generator Loss": 1303.9308, "Discriminator Loss": 516.3393})
    for weights in ("Mask Loss: 5.0, Dice Loss: 2.5", "Generator Loss: 1303.9308", "cost_class: 2.0"):
        assert reader.feed(weights) is None


def test_a_long_record_is_read_to_its_end() -> None:
    """DETR and its kin write some 4500 characters an epoch, the epoch last."""
    parts = ", ".join(f'"train_loss_bbox_{n}_unscaled": {n / 7}' for n in range(90))
    found = MetricReader().feed(f'{{"train_loss": 7.5, {parts}, "epoch": 49}}')
    assert found is not None
    assert found.values == {"loss": 7.5, "epoch": 49}


def test_trained_and_evaluated_with_a_loss() -> None:
    reader = MetricReader()
    trained = reader.feed("Epoch 3 trained with loss: 4.25e-05. The running time is 3506.1.")
    scored = reader.feed("Epoch 3 evaluated with loss: 6.25e-05, dice score: 0.5. The running time is 653.2.")
    assert trained is not None
    assert scored is not None
    assert trained.values == {"epoch": 3, "loss": 4.25e-05}
    assert scored.values == {"epoch": 3, "val_loss": 6.25e-05}


def test_the_mean_over_a_whole_run_says_that_it_is_one() -> None:
    reader = MetricReader()
    for _ in range(2):
        last = reader.feed("{'loss': 1.1, 'learning_rate': 0.0, 'epoch': 3.0}")
        mean = reader.feed("{'train_runtime': 12.3, 'train_loss': 1.9, 'epoch': 3.0}")
        assert last is not None
        assert mean is not None
        assert (last.off_curve, mean.off_curve, mean.loss) == (False, True, 1.9)


@given(st.integers(0, 10**6))
def test_durations_in_their_spellings(total: int) -> None:
    hours, minutes, rest = total // 3600, total // 60 % 60, total % 60
    assert seconds(f"{hours}:{minutes:02}:{rest:02}") == total
    assert seconds(f"{hours // 24} days, {hours % 24}:{minutes:02}:{rest:02}") == total
    assert seconds(f"{hours}h{minutes}m{rest}s") == total


@pytest.mark.parametrize(
    "line",
    [
        r'{"log":"{\"step\": 3, \"loss\": 2.5}\n","stream":"stdout","time":"2026-11-20T14:12:03.1Z"}',
        r'{"log":"step\t3\tloss\t2.5\n","attrs":{"step":"9"},"stream":"stdout"}',
        r'{"message":"2026-11-20 10:00:00 INFO trainer: step 3 loss 2.5","level":"info","duration":12.5}',
    ],
)
def test_a_collectors_json_record_is_read_by_its_message(line: str) -> None:
    sample = MetricReader().feed(line)
    assert sample is not None
    assert sample.values == {"step": 3, "loss": 2.5}
    assert sample.other == {}, "the record's own numbers are no metrics"
