"""Families of forms that strangers' logs have: counters, records and tables in a form of their own, and what looks like a reading."""

from __future__ import annotations

import pytest

from supervisor.sources.metrics import MetricReader, MetricSample
from tests.sources.metric_lines import values


def of_last(*lines: str) -> dict[str, float]:
    """What is read of the last of several lines, with its own names."""
    reader = MetricReader()
    found: MetricSample | None = None
    for line in lines:
        found = reader.feed(line)
    return {**found.values, **found.other} if found is not None else {}


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("[4][120/900], loss=2.45", {"epoch": 4, "step": 120, "total_steps": 900, "loss": 2.45}),
        (
            "INFO:4-epoch (120/900): total loss 2.45",
            {"epoch": 4, "step": 120, "total_steps": 900, "loss": 2.45},
        ),
        (
            "Epoch[4] Batch [0-120]\tSpeed: 25.5 samples/sec",
            {"epoch": 4, "step": 120, "samples_per_sec": 25.5},
        ),
        ("2025-01-16 13:31:58 train 050 9.25e-02 96.25 99.5", {"step": 50, "loss": 0.0925}),
        ("2025-01-16 13:31:58 valid 050 9.25e-02 96.25 99.5", {"val_loss": 0.0925}),
    ],
)
def test_an_epoch_and_its_steps_in_brackets(line: str, read: dict[str, float]) -> None:
    assert values(line) == read


def test_of_counters_that_continue_a_line_the_last_counts() -> None:
    assert of_last("Epoch: 9", "  TRAIN    100/352  200/352  300/352") == {"step": 300, "total_steps": 352}
    assert of_last("Epoch: 9", "  TRAIN    100/352  200/352", "  TRAIN    100/352  200/354") != {"step": 200}


def test_of_records_on_one_line_the_last_counts() -> None:
    line = "epoch: 1/9, train_loss: 2.5, acc: 0.25epoch: 2/9, train_loss: 1.5, acc: 0.5"
    assert of_last(line) == {"epoch": 2, "total_epochs": 9, "loss": 1.5, "acc": 0.5}


def test_a_global_step_beside_the_epochs_is_a_heading() -> None:
    assert values("After 201 steps, Global Step: 1201") == {"step": 1201}
    assert values("---- Completed Epoch: 4 Global Step: 5000 ----") == {"epoch": 4, "step": 5000}
    assert values("Global Step: 1201. Best eval accuracy so far. Saving model.") == {}


def test_the_name_of_a_sample_is_no_part_of_a_counters() -> None:
    line = "image: 2008_004942.jpg iter: 140 / 2000, total loss: 2.5, rpn_loss_cls: 0.5"
    assert values(line) == {"step": 140, "total_steps": 2000, "loss": 2.5}


def test_counters_and_speeds_are_never_negative() -> None:
    assert values("  recall = tps / tps[-1]") == {}
    assert values("step 3 loss -0.5 tok/s 1200") == {"step": 3, "loss": -0.5, "tokens_per_sec": 1200}


def test_keras_means_of_batch_numbers_are_no_steps() -> None:
    line = " 72/145 [====>....] - ETA: 45s - batch: 35.5000 - size: 5.0000 - loss: 0.0747"
    assert values(line) == {"step": 72, "total_steps": 145, "eta_s": 45, "loss": 0.0747}


@pytest.mark.parametrize(
    "line",
    [
        "[INFO] [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0], mom=[(0.9, 0.999)]",
        "'filename': '{epoch:06}-{val_loss:.2f}', 'every': 5",
        "GRADIENT_CLIP_NORM             5.0",
        "Losses [tensor(171.9), tensor(151.7)]",
        "* Cost = 14 km * $2/km",
        "train loss 0,3121",
        "cifar99   train : [loss = 1.05, top1 = 69.7%], valid : [loss = 1.39, top1 = 61.0%]",
    ],
)
def test_what_looks_like_a_reading_and_is_none(line: str) -> None:
    assert values(line) == {}


def test_an_engine_that_counts_is_read() -> None:
    reader = MetricReader()
    assert reader.feed("[Rank 0] step=0, skipped=0, lr=[0.0], mom=[(0.9, 0.999)]") is None
    found = reader.feed("[Rank 0] step=10, skipped=0, lr=[0.1], mom=[(0.9, 0.999)]")
    assert found is not None
    assert found.step == 10


def test_the_logarithm_of_a_rate_is_no_rate() -> None:
    assert of_last("Epoch\t\tLoss\t\tlr", "12\t\t3.25\t\t-4.5") == {"epoch": 12, "loss": 3.25}
    assert values("step 3 loss 0.5 lr -4.5") == {"step": 3, "loss": 0.5}


def test_a_table_of_two_columns_of_sets() -> None:
    header = "2026-01-20 17:52:06,837 - METRIC     | TRAIN      | VALIDATION"
    assert of_last(header, "2026-01-20 17:52:06,837 - Loss       | 0.0559     | 0.1546") == {
        "loss": 0.0559,
        "val_loss": 0.1546,
    }


def test_a_table_continues_behind_one_of_classes() -> None:
    header = "  Epoch    GPU_mem   box_loss   cls_loss  Instances       Size"
    row = (
        "  47/100      2.25G     0.75     0.5         33        640: 100%|███| 14/14 [00:04<00:00,  5.0it/s]"
    )
    of_classes = (
        "   Class     Images  Instances      mAP50  mAP50-95",
        "     all       7866       9060      0.7      0.6",
    )
    read = of_last(header, *of_classes, row)
    assert (read["epoch"], read["total_epochs"], read["box_loss"], read["step"]) == (47, 100, 0.75, 14)


def test_a_validation_s_loss_comes_before_a_test_s() -> None:
    assert values('{"epoch": 2, "test_loss": 1.5, "val_loss": 2.5}')["val_loss"] == 2.5
    assert values('{"epoch": 2, "test_loss": 1.5}')["val_loss"] == 1.5


@pytest.mark.parametrize(
    "line",
    [
        "(step=0080000) Train Loss: 0.25, Train Steps/Sec: 4.0",
        "[iter 100] loss 0.25 (0.25s per iter)",
        "step 100 | loss 0.25 | rss 1506MB | 0.25s",
    ],
)
def test_speeds_in_a_form_of_their_own(line: str) -> None:
    assert values(line)["step_time_s"] == 0.25


def test_a_time_below_an_epoch_is_none_of_a_step() -> None:
    assert "step_time_s" not in of_last("Epoch: 9", "\tTime: 42.7")


def test_a_summary_behind_a_star_is_of_held_out_data() -> None:
    assert of_last("Test: [0/4]\tLoss 0.5", " * ERR 20.714 LOSS 0.054") == {"val_loss": 0.054, "ERR": 20.714}


def test_an_evaluation_s_epoch_is_the_heading_of_what_follows() -> None:
    lines = ("Eval epoch: 24", "\tmean_loss: 0.5", "Training epoch: 25", "\tmean_loss: 0.25")
    assert of_last(*lines[:2]) == {"val_loss": 0.5}
    assert of_last(*lines) == {"loss": 0.25}


def test_means_are_of_the_pass_before() -> None:
    means = "Averaged stats: loss: 0.5 (0.75)"
    test = (
        "Test:  [4/5]  eta: 0:00:00  loss: 0.5 (0.75)  max mem: 212",
        "Test: Total time: 0:05:11 (0.08 s / it)",
    )
    train = (
        "Epoch: [3]  [4/5]  eta: 0:00:00  loss: 0.5 (0.75)  time: 0.84",
        "Epoch: [3] Total time: 0:05:11 (0.08 s / it)",
    )
    assert of_last(*test, means) == {"val_loss": 0.5}
    assert of_last(*train, means) == {"loss": 0.5}


def test_a_set_that_is_named_last_is_the_line_s() -> None:
    assert "step" not in of_last("Batch 39/66: perplexity: 202.5, loss: 5.25 || , for evaluation data")


def test_a_record_of_scores_has_no_step_of_training() -> None:
    assert values('{"coco/bbox_mAP": 0.25, "data_time": 0.01, "time": 0.03, "step": 0}') == {}
    assert values('{"lr": 0.01, "loss": 0.25, "data_time": 0.01, "time": 0.03, "step": 7}')["step"] == 7


def test_a_step_behind_an_epoch_has_its_share_without_brackets() -> None:
    read = values("epoch: 1, 121/125 96.8%, 2.59s per iter, lr: 0.0004")
    assert read == {"epoch": 1, "step": 121, "total_steps": 125, "step_time_s": 2.59, "lr": 0.0004}
    assert "step" not in values("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3")


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("Running step 1:   2%|▏    | 1/64 [21:53<22:59:07, 1.31ks/it]", {"step_time_s": 1310, "step": 1}),
        (
            "tick 9   kimg 45.5   time 3d 07h 58m   sec/tick 306.4   iters/sec 2.5   gpumem 1.0",
            {"step_time_s": 0.4, "step": 9},
        ),
        (
            "Epoch 1 Train batch 92/925 | loss: 0.25 (65.1 %)",
            {"epoch": 1, "step": 92, "total_steps": 925, "loss": 0.25},
        ),
    ],
)
def test_units_and_times_of_many_steps(line: str, read: dict[str, float]) -> None:
    assert read.items() <= values(line).items()


@pytest.mark.parametrize(
    "line",
    [
        "[2025-12-14 02:50:26,593 E 8248 8248] logging.cc:447:     @     0x7f7537e89420  (unknown)",
        '    "tokens_per_second": 2,',
        "Generate label finished(sec_per_example: 0.0504 second).",
        "predict_samples_per_second     =       0.51",
        "1/1 [==============================] - 1s 1s/step",
        "DEBUG CREQ ep=0x5555(iface=0x55 conn_id=0 ep_id=1, dest_ep_id=1 rx_psn=1)",
        " 85%|████████▌ | 851842/1000000 [00:00<00:00, 2896050.15it/s]",
        "Preprocessing: 812.2 samples/s",
        "Reading shards: 1200 examples/s",
        "Data loader benchmark: 5123 images/sec",
        "Total items produced in the second period: 73 items",
    ],
)
def test_what_looks_like_a_counter_or_a_speed_and_is_none(line: str) -> None:
    assert values(line) == {}


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (
            "Steps: 100/1000, Loss: 0.25, Speed: 4.0 it/s",
            {"step": 100, "total_steps": 1000, "loss": 0.25, "step_time_s": 0.25},
        ),
        ("Epoch-3 | Batch-100 | Loss: 0.25", {"epoch": 3, "step": 100, "loss": 0.25}),
        ("Epoch_3: loss 0.25", {"epoch": 3, "loss": 0.25}),
        (
            "Epoch(3/10) Batch(100/500) loss(0.25)",
            {"epoch": 3, "total_epochs": 10, "step": 100, "total_steps": 500, "loss": 0.25},
        ),
        ("After 100 steps: loss 0.25", {"step": 100, "loss": 0.25}),
        ("Global round 3: loss 0.25", {"step": 3, "loss": 0.25}),
        ("GPU 0 Epoch 3 loss 0.25", {"epoch": 3, "loss": 0.25}),
        ("epoch => 3, loss => 0.25", {"epoch": 3, "loss": 0.25}),
        ("Epoch 3: train_loss/val_loss 0.25 / 0.5", {"epoch": 3, "loss": 0.25, "val_loss": 0.5}),
        ("Epoch 3 loss (train/val): 0.25/0.5", {"epoch": 3, "loss": 0.25, "val_loss": 0.5}),
    ],
)
def test_counters_and_losses_joined_to_their_names(line: str, read: dict[str, float]) -> None:
    assert values(line) == read


def test_the_values_below_a_set_s_name_are_of_it_until_a_counter() -> None:
    lines = ("Training...", "loss: 0.25", "Validating...", "loss: 0.5", "step 5 loss 0.125", "loss: 0.75")
    assert of_last(*lines[:2]) == {"loss": 0.25}
    assert of_last(*lines[:4]) == {"val_loss": 0.5}
    assert of_last(*lines) == {"loss": 0.75}


def test_a_pass_of_an_epoch_has_its_own_counters() -> None:
    lines = ("epoch 3 validation", "10/20 loss 0.5", "epoch 4 training", "10/50 loss 0.25")
    assert of_last(*lines[:2]) == {"val_loss": 0.5}
    assert of_last(*lines) == {"step": 10, "total_steps": 50, "loss": 0.25}


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (
            "Train: [ 3/50] Step 100/390 Loss 0.25",
            {"epoch": 3, "total_epochs": 50, "step": 100, "total_steps": 390, "loss": 0.25},
        ),
        ("iter/epoch: 100/3, loss: 0.25", {"step": 100, "epoch": 3, "loss": 0.25}),
        ("step 100 loss 0.25 iter/s 4.0", {"step": 100, "loss": 0.25, "step_time_s": 0.25}),
        ("step 100 loss 0.25 (4.0 steps per second)", {"step": 100, "loss": 0.25, "step_time_s": 0.25}),
        ("step 100 loss=0.25  4.0 batches/sec", {"step": 100, "loss": 0.25, "step_time_s": 0.25}),
        ("-- Epoch 3", {"epoch": 3}),
    ],
)
def test_pairs_and_rates_of_steps(line: str, read: dict[str, float]) -> None:
    assert values(line) == read


@pytest.mark.parametrize(
    "line", ["Begin epoch 3", "Start of epoch 3", "=> Starting train epoch 3", "##### Epoch 3 #####"]
)
def test_the_beginning_of_an_epoch_is_a_heading(line: str) -> None:
    assert values(line) == {"epoch": 3}
    assert values("Starting training from epoch 3") == {}
    assert values("INFO  start_epoch      3") == {}


def test_what_a_longer_bar_left_on_the_line_is_not_read() -> None:
    bar = " 49%|████      | 490/1000 [00:10<00:10, 50.0it/s]"
    read = {"step": 490, "total_steps": 1000, "eta_s": 10, "step_time_s": 0.02}
    assert values(f"{bar}5:31:16,  3.24it/s]") == values(bar) | read
    assert values(f"{bar}] ▉| 2116733/2119719 [00:31<00:00, 6909.34 examples/s]") == values(bar) | read
    for line in (
        f"{bar}  lossnan_iter50000.pt[00:27<00:00, 71704.73 examples/s]",
        f"{bar} loss 0.5 iter50000.pt00:27<00:00, 71704.73 examples/s]",
        "lr: 0.0003 loss: 0.5      .76it/s]  ossnan_iter50000.pt00:27<00:00, 71704.73 examples/s]",
    ):
        left = MetricReader().feed(line)
        assert left is not None
        assert (left.other, "samples_per_sec" in left.values) == ({}, False)


def test_how_fast_an_evaluation_is_is_not_the_training_s_speed() -> None:
    assert values("Test: [ 10/100] Time 0.1 (0.1) 512 img/s Loss 1.2 (1.2)") == {"val_loss": 1.2}
    assert values("Step 100, 121.2 samples/s") == {"step": 100, "samples_per_sec": 121.2}


@pytest.mark.parametrize("name", ["ossnan_iter100000.pt00", "best.ckpt", "runs/a/metrics.json"])
def test_no_metric_has_the_name_of_a_file(name: str) -> None:
    sample = MetricReader().feed(f"step 3 loss 0.5 {name}: 27.0 s0.acc: 28.0")
    assert sample is not None
    assert sample.other == {"s0.acc": 28.0}


def test_columns_in_one_pair_of_brackets_have_names_without_it() -> None:
    reader = MetricReader()
    assert (
        reader.feed(
            "     Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|███| 2/2 [00:33<00:00,  7.43it/s]"
        )
        is None
    )
    sample = reader.feed("       all       7866       9060      0.726      0.978      0.767      0.478")
    assert sample is not None
    assert set(sample.other) >= {"Box P", "R", "mAP50", "mAP50-95"}


@pytest.mark.parametrize("heading", ["Test results:", "Evaluate at epoch 3", "Evaluating after step 30..."])
def test_an_evaluation_s_heading_holds_for_lines_without_indentation(heading: str) -> None:
    assert of_last(heading, "loss: 0.5") == {"val_loss": 0.5}
    assert of_last(heading, "loss: 0.5", "step 31 loss: 0.25") == {"step": 31, "loss": 0.25}
