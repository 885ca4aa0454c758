"""What whole logs hold that excerpts do not: summaries, passes over held-out data, blocks that never end."""

from __future__ import annotations

import pytest

from supervisor.sources.metrics import MetricReader
from supervisor.text.decode import clean
from tests.sources.metric_lines import values


def read(text: str) -> list[dict[str, float]]:
    """What is found in each line, with the loss only where it is a point of the curve."""
    reader = MetricReader()
    found: list[dict[str, float]] = []
    for line in text.strip("\n").split("\n"):
        sample = reader.feed(clean(line.encode()))
        have = sample.values if sample is not None else {}
        if sample is not None and sample.off_curve:
            have.pop("loss", None)
        found.append({name: have[name] for name in ("step", "loss", "val_loss") if name in have})
    return found


@pytest.mark.parametrize("prefix", ["", "05/01/2023 10:00:00 - INFO - __main__ - ", "INFO:__main__:"])
@pytest.mark.parametrize("heading", ["***** train metrics *****", "***** Train results *****"])
def test_the_mean_over_the_run_is_no_point_of_the_curve(prefix: str, heading: str) -> None:
    table = [heading, "  epoch      =  2.0", "  train_loss =  1.0194", "  train_runtime = 2:04:49.34"]
    *summary, after = read("\n".join(prefix + line for line in [*table, "step 3 loss 0.5"]))
    assert summary == [{}, {}, {}, {}]
    assert after == {"step": 3, "loss": 0.5}
    reader = MetricReader()
    samples = [reader.feed(line) for line in table]
    assert samples[2] is not None
    assert samples[2].values == {"loss": 1.0194}  # printed all the same


def test_a_pass_over_held_out_data_goes_on_until_training_is_named() -> None:
    for begin in ("Eval begin...", "Start validation", "Begin evaluation ..."):
        text = f"""
step 10/40 - loss: 0.51
{begin}
step 10/20 - loss: 0.41
step 20/20 - loss: 0.40
Eval samples: 10000
step 20/40 - loss: 0.50
{begin}
Epoch 2/3
step 10/40 - loss: 0.49
"""
        first, *evaluated, last = [found for found in read(text) if found.keys() & {"loss", "val_loss"}]
        assert first == {"step": 10, "loss": 0.51}
        assert evaluated == [{"val_loss": 0.41}, {"val_loss": 0.40}, {"step": 20, "loss": 0.50}]
        assert last == {"step": 10, "loss": 0.49}


@pytest.mark.parametrize("heading", ["Validation:", "验证集:", "验证集：", "--- Test set: ---", "テスト:"])
def test_the_name_of_a_set_alone_heads_its_values(heading: str) -> None:
    for indent in ("", "  "):
        found = read(f"{heading}\n{indent}loss: 0.41, acc: 0.9\nstep 20 loss 0.50\nloss: 0.31, acc: 0.9")
        assert found == [{}, {"val_loss": 0.41}, {"step": 20, "loss": 0.50}, {"loss": 0.31}]


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("  ├─ 训练集表现: Loss=0.6982 | Acc=0.452", {"loss": 0.6982}),
        ("  ├─ 验证集混淆: Loss=0.7083 | Acc=0.438", {"val_loss": 0.7083}),
        ("测试集: Loss=0.31", {"val_loss": 0.31}),
        ("検証データ: loss=0.31", {"val_loss": 0.31}),
        ("[Epoch 3] 训练集 loss: 0.31 验证集 loss: 0.45", {"epoch": 3, "loss": 0.31, "val_loss": 0.45}),
    ],
)
def test_sets_are_known_by_their_names_in_other_languages(line: str, want: dict[str, float]) -> None:
    assert values(line) == want


@pytest.mark.parametrize(
    "bar",
    [
        "Validation ━━━━━━━━━━━━━━━━━ 20/20 0:00:02 • 0:00:00 12.31it/s ",
        "Validation: 100%|██████████| 20/20 [00:02<00:00, 12.31it/s, val_loss=0.9]",
        "Loading weights: 100%|██████████| 20/20 [00:02<00:00, 12.31it/s] ",
    ],
)
@pytest.mark.parametrize(
    "prefix", ["2024-05-01 10:00:00,123 INFO ", "[2024-05-01 10:00:00,123][train][INFO] - "]
)
def test_a_bar_before_a_logger_s_line_does_not_decide_whose_that_is(bar: str, prefix: str) -> None:
    assert values(f"{bar}{prefix}step 40 loss 0.312 lr 0.001") == {"step": 40, "loss": 0.312, "lr": 0.001}
    bar = "Epoch 1/4 ━━━━━━━━━━━━━━━━━ 19/20 0:00:02 • 0:00:00 12.31it/s v_num: 0.000 "
    found = values(f"{bar}{prefix}val loss 0.312")
    assert (found.get("step"), found.get("val_loss"), found.get("loss")) == (19, 0.312, None)


def test_a_warning_s_source_line_opens_no_block() -> None:
    reports = ["{'loss': '0.9528', 'learning_rate': '1e-05', 'epoch': '1.015'}", "[step 3 (loss 0.5)]"]
    for opening in ("  warnings.warn(", "  return fn(", "warnings.warn("):
        found = read("\n".join(["/x/y.py:372: UserWarning: no config", opening, *reports]))
        assert found == [{}, {}, {"loss": 0.9528}, {"step": 3, "loss": 0.5}], opening


def test_a_call_ends_at_a_report_and_has_a_bound() -> None:
    assert read("TrainConfig(\n  lr=0.1,\n  loss=3,\n  optim=Adam(\n    lr=0.1,\n  ),\n)\nloss: 0.5") == [
        *[{}] * 7,
        {"loss": 0.5},
    ]
    assert read("TrainConfig(\n  lr=0.1,\n  {'loss': 0.5, 'epoch': 1.0}\n  loss: 0.4,")[2:] == [
        {"loss": 0.5},
        {"loss": 0.4},
    ]
    assert read("Call(\n" + "  loss: 0.4,\n" * 300)[-1] == {"loss": 0.4}


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("step 10 loss 0.3 LR: 0.001 Grad: 1.31", {"step": 10, "loss": 0.3, "lr": 0.001, "grad_norm": 1.31}),
        ("Grad: 1.31", {}),
        ("the learning rate is 0.001", {"lr": 0.001}),
        ("->>lr:0.001000", {"lr": 0.001}),
        ("lr: 0.001", {}),
        ("epoch: 0, batch_id: 500, loss:0.18", {"epoch": 0, "step": 500, "loss": 0.18}),
        ("epoch no 3 iter count 500 loss:0.18", {"epoch": 3, "step": 500, "loss": 0.18}),
        ("INFO: Meta epoch 1...", {"epoch": 1}),
        ("Start training epoch 9, 3511 iters per inner epoch.", {"epoch": 9}),
        ("rl_loss: -0.27, time: 108.1, l2_norm: 0.14", {"loss": -0.27}),
        (
            "ep=5 step=20/193 LR=1e-4 L=nan rec=nan top=1.1 diag(a_std=nan,b_std=0.1,a_abs=nan)",
            {"step": 20, "total_steps": 193, "epoch": 5, "lr": 1e-4},
        ),
        ("epoch_out: 19, epoch_in: 9, loss: -0.21", {"epoch": 19, "loss": -0.21}),
        (
            "Epoch 43, Train Loss: 0.75, Training Time: 196.769",
            {"epoch": 43, "loss": 0.75, "epoch_time_s": 196.769},
        ),
        ("epoch:3 L_adv:0.045,L_rec:1.1,L_total:1.168", {"epoch": 3, "loss": 1.168}),
        ("JobId=1203 StepId=0 TRES=gres/gpu=32", {}),
        ("2epoch:train:101-200batch: loss=3.2", {"epoch": 2, "step": 200, "loss": 3.2}),
        ("2epoch:valid:101-200batch: loss=3.2", {"epoch": 2, "val_loss": 3.2}),
    ],
)
def test_smaller_spellings(line: str, want: dict[str, float]) -> None:
    assert values(line) == want


def test_another_kind_of_loss_continues_the_curve_and_is_named_once() -> None:
    lines = [
        f"step {step} {name}: {3 - step / 10}"
        for step, name in enumerate(["focal_loss"] * 3 + ["dice_loss"] * 3)
    ]
    for chunk in (1, 6):
        reader = MetricReader()
        samples = [
            sample
            for begin in range(0, 6, chunk)
            for sample in reader.read([line.encode() for line in lines[begin : begin + chunk]])
            if sample is not None
        ]
        assert [sample.loss for sample in samples] == [3.0, 2.9, 2.8, 2.7, 2.6, 2.5]
        assert [sample.renamed for sample in samples] == ["", "", "", "dice_loss", "", ""]


def test_a_kind_of_loss_is_the_loss_where_the_log_names_no_total() -> None:
    for name in ("Focal_Loss", "MAE Loss", "BCE loss", "arcface_loss", "smooth_l1_loss"):
        assert read(f"Epoch 3 {name}: 0.31, acc: 0.5\nEpoch 4 {name}: 0.3") == [
            {"loss": 0.31},
            {"loss": 0.3},
        ], name
        # A total, also one of an earlier line; and another kind beside it.
        assert read(f"step 1 loss 0.5\nstep 1 {name}: 0.31")[1] == {"step": 1} or name in {
            "BCE loss",
            "smooth_l1_loss",
        }
        assert read(f"step 1 {name}: 0.31 other_loss: 0.2 center_loss 0.1") == [{"step": 1}], name
        assert values(f"step 1 {name}: 0.31 total_loss: 0.5")["loss"] == 0.5
    assert read("Validation: step 3 focal_loss 0.3") == [{"step": 3, "val_loss": 0.3}]
    assert read("step 3 G_loss 0.3\nstep 3 t_loss 0.3\nfocal_loss 0.3") == [{"step": 3}, {"step": 3}, {}]


def test_a_kind_that_comes_in_turn_with_another_is_a_part() -> None:
    lines = [f"step {n // 2} {'rec' if n % 2 else 'adversarial'}_loss 0.{n}" for n in range(2, 9)]
    assert ["loss" in found for found in read("\n".join(lines))] == [True, True, *[False] * 5]
    # One after the other they are two stages of a training.
    stages = [f"step {n} {'rec' if n < 5 else 'adversarial'}_loss 0.{n}" for n in range(1, 9)]
    assert all("loss" in found for found in read("\n".join(stages)))


def test_one_of_several_outputs_is_no_point_beside_the_total() -> None:
    lines = [
        "I0614 03:14:13.712623  1860 solver.cpp:228] Iteration 42000, loss = 3.5",
        "I0614 03:14:13.712630  1860 solver.cpp:244]     Train net output #1: loss = 3.43048 (* 1 = 3.43048 loss)",
    ]
    assert read("\n".join(lines)) == [{"step": 42000, "loss": 3.5}, {}]
    assert values(lines[1]) == {"loss": 3.43048}  # printed all the same
    assert values(lines[1].replace("Train", "Test")) == {"val_loss": 3.43048}


@pytest.mark.parametrize(
    "name", ["val loss: 0.31, avg val loss: {}", "Eval [90/100] val_loss 0.3 mean_val_loss {}"]
)
def test_of_held_out_data_the_mean_is_meant(name: str) -> None:
    assert values(name.format(0.42))["val_loss"] == 0.42
    assert values("step 3 loss 0.31 avg_loss 0.42")["loss"] == 0.31


def test_a_moving_average_is_not_the_held_out_loss() -> None:
    """Of held-out losses on one line the mean over the set wins, not what is smoothed over passes."""
    line = "Epoch [80/500], Validation Loss: 0.0146, Smoothed Validation Loss: 10.6092"
    (found,) = read(line)
    assert found["val_loss"] == 0.0146
    (mean,) = read("val_loss: 0.5 avg_val_loss: 0.4 epoch: 3")
    assert mean["val_loss"] == 0.4


def test_a_step_of_the_other_stream_among_a_traceback_s_lines_is_read() -> None:
    lines = [
        "Traceback (most recent call last):",
        "{'loss': 0.17, 'learning_rate': 1e-07, 'epoch': 0.1}",
        '  File "train.py", line 137, in <module>',
        "    loss = 0.5",
        "ValueError: loss: 0.3 at step 5",
        "step 6 loss 0.2",
    ]
    assert read("\n".join(lines)) == [
        {},
        {"loss": 0.17},
        {},
        {},
        {},
        {"step": 6, "loss": 0.2},
    ]


ENCODING = """
INFO:content:Encoding 17562 texts with SBERT (batch_size=128)...
INFO:device:Before SBERT encoding: allocated 0.1 GB
Batches:   0%|          | 0/138 [00:00<?, ?it/s]
Batches:  52%|#####2    | 72/138 [00:31<00:12,  5.37it/s]
INFO:content:SBERT embeddings shape: (17562, 384)
"""
FETCHING = """
Pre-fetching 2266 unique images from HF Hub ...
  100/2266  (93 img/s  ETA 23s)
  2266/2266  (141 img/s  ETA 0s)

"""
ENCODE = """
2023-08-25 09:10:55 INFO     encode all the data       : 75722
  0%|          | 61/75722 [00:01<02:05, 603.06it/s]
"""


@pytest.mark.parametrize("text", [ENCODING, FETCHING, ENCODE])
def test_work_that_a_heading_announces_with_its_number_is_no_training(text: str) -> None:
    reader = MetricReader()
    for line in text.strip("\n").split("\n"):
        sample = reader.feed(clean(line.encode()))
        assert sample is None or "step" not in sample.values


@pytest.mark.parametrize(
    "heading",
    [
        "Loaded 60000 images",  # done
        "Load val scanrefer: 9508 samples",
        "Loading checkpoint shards:   0%|          | 0/20 [00:00<?, ?it/s]",  # a bar of its own
        "Loading checkpoint shards: 100%|██████████| 20/20 [00:09<00:00, 2.1it/s]",
        "Loading model from checkpoint-12000",
        "Processing 60000 training samples",
        "Generating tokens at step 1200",
    ],
)
def test_the_bar_below_other_headings_is_the_trainings(heading: str) -> None:
    reader = MetricReader()
    reader.feed(heading)
    sample = reader.feed("  9%|▉         | 41/469 [00:13<02:05, 3.06it/s]")
    assert sample is not None
    assert sample.values["step"] == 41


def test_a_line_of_training_ends_the_counting_of_other_work() -> None:
    reader = MetricReader()
    for line in (
        "Encoding 17562 texts ...",
        " 50%|█████     | 60/120 [00:13<00:13, 4.6it/s]",
        "Start training",
    ):
        assert reader.feed(line) is None
    sample = reader.feed(" 12%|█▎        | 60/500 [00:13<02:05, 3.06it/s]")
    assert sample is not None
    assert sample.values["step"] == 60
    for line in ("Encoding 17562 texts ...", *2 * ["100%|██████████| 138/138 [00:13<00:00, 10.6it/s]"]):
        assert reader.feed(line) is None
    sample = reader.feed("  1%|          | 6/500 [00:13<02:05, 3.06it/s]")
    assert sample is not None  # a bar below a full one
    assert sample.values["step"] == 6
    reader.feed("Encoding 17562 texts ...")
    sample = reader.feed(" 12%|█▎        | 60/500 [00:13<02:05, 3.06it/s, loss=0.3]")
    assert sample is not None
    assert sample.values["step"] == 60


@pytest.mark.parametrize(
    "line",
    [
        "[1/6] Loading multi-lap data (downsample=10, dt=0.050s = 20Hz)...",
        "[2/4] Preparing batches (size=0.5, time: 0.3s)",
        "Dream Rollout Evaluation (400 steps = 20.0s)",
    ],
)
def test_a_stage_of_the_program_is_no_step(line: str) -> None:
    sample = MetricReader().feed(line)
    assert sample is None or sample.values.keys().isdisjoint({"step", "step_time_s"})


def test_a_number_before_a_learning_rate_alone_is_a_time() -> None:
    reader = MetricReader()
    assert reader.feed("1017000: lr=1.000000") is None
    sample = reader.feed("100 | lr=0.1, loss=2.3125")
    assert sample is not None
    assert sample.values["step"] == 100


def test_a_pair_before_measurements_is_still_the_step() -> None:
    for line in ("[100/1000] learning rate: 0.1, time: 0.3", "[100/1000] loading: 0.1, loss: 0.3"):
        sample = MetricReader().feed(line)
        assert sample is not None
        assert sample.values["step"] == 100


def test_bars_may_stand_between_groups_of_columns() -> None:
    reader = MetricReader()
    text = (
        " Ep │ CScale │  TrainLoss   Tr_MSE │   ValLoss   Va_MSE │       LR   Time       ETA",
        "────┼────────┼─────────────────────┼────────────────────┼──────────────────────────",
        " 30 │   1.00 │   0.545351 0.050209 │  0.431273 0.034755 │  2.5e-06   218s        1m",
    )
    *_, sample = (reader.feed(line) for line in text)
    assert sample is not None
    assert sample.values == {"epoch": 30, "loss": 0.545351, "val_loss": 0.431273, "lr": 2.5e-06, "eta_s": 60}


def test_how_much_memory_there_is_is_no_metric() -> None:
    line = "GPU Memory - Allocated: 0.08GB, Reserved: 0.10GB, Total: 4.00GB"
    sample = MetricReader().feed(line)
    assert sample is not None
    assert sample.other == {"Reserved": 0.1}


def test_a_record_may_hold_the_settings_beside_its_epoch_and_loss() -> None:
    reader = MetricReader()
    settings = '{"load": null, "momentum": 0.9, "epochs": 300, "learning_rate": 0.05, "dataset": "cifar10", "log": "x"}'
    assert reader.feed(settings) is None
    record = (
        settings[:-1] + ', "train_loss": 1.2666670091, "epoch": 0, "test_loss": 1.2791472765, "depth": 29}'
    )
    sample = reader.feed(record)
    assert sample is not None
    assert sample.values == {"epoch": 0, "loss": 1.2666670091, "val_loss": 1.2791472765, "lr": 0.05}


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("[41/41] 49300), Loss: 0.037, mAP 93.61%", {"epoch": 41, "total_epochs": 41, "step": 49300, "loss": 0.037}),
        ("[41/41] 49300: Loss: 0.037", {"epoch": 41, "total_epochs": 41, "step": 49300, "loss": 0.037}),
        ("[41/41] 0.25, Loss: 0.037", {"total_steps": 41, "step": 41, "loss": 0.037}),
        (
            "[Train][ 1][1/22]   NLL-36.105   ACC-0.000   LOSS-36.105   TIME-2.03",
            {"epoch": 1, "step": 1, "total_steps": 22, "loss": 36.105, "step_time_s": 2.03},
        ),
        ("Algo mappo updates 995/1000 episodes, total num timesteps 298800/300000, FPS 39.", {"step": 298800, "total_steps": 300000}),
    ],
)  # fmt: skip
def test_counters_in_brackets_before_a_step(line: str, want: dict[str, float]) -> None:
    sample = MetricReader().feed(line)
    assert sample is not None
    assert sample.values == want
    assert sample.rank is None


def test_a_test_set_s_loss_is_no_point_of_the_validation_s_curve() -> None:
    reader = MetricReader()
    lines = [
        "Epoch 3 Train Loss: 0.15, Val Loss: 0.18",
        "Test Loss: 0.17, Test Accuracy: 0.94",
        "Epoch 4 Train Loss: 0.14, Val Loss: 0.17",
    ]
    samples = [reader.feed(text) for text in lines]
    assert [sample.off_curve for sample in samples if sample is not None] == [False, True, False]
    alone = MetricReader().feed(lines[1])
    assert alone is not None
    assert not alone.off_curve, "the only held-out set of its log"
