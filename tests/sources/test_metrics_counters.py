"""What a counter counts: training's steps, its epochs, or an evaluation's batches; and how often a bar's states count."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.main import main
from supervisor.sources.metrics import MetricReader, standing_states
from tests.sources.metric_lines import values

FULL = "100%|##########| {n}/{n} [00:44<00:00,  9.75it/s]"
CURVE = ("step", "total_steps", "epoch", "loss", "val_loss")


def curve(line: str) -> dict[str, float]:
    """Of a line read alone: what a chart of the training would take."""
    return {name: value for name, value in values(line).items() if name in CURVE}


def curves(text: str) -> list[dict[str, float]]:
    """The same of each line of a log, read in order."""
    reader = MetricReader()
    found = [reader.feed(line) for line in text.splitlines()]
    return [
        {name: value for name, value in sample.values.items() if name in CURVE} if sample is not None else {}
        for sample in found
    ]


def printed(text: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> list[dict[str, Any]]:
    """What `stoker metrics --json` prints of a log, with carriage returns."""
    log = tmp_path / "train.log"
    log.write_bytes(text.encode())
    assert main(["metrics", "--json", str(log)]) == 0
    return [json.loads(line) for line in io.BytesIO(capsysbinary.readouterr().out)]


@pytest.mark.parametrize(
    "words",
    [
        "Computing mean PPL",
        "Computing loss on dev set",
        "Calculating accuracy",
        "Measuring val ppl",
        "Eval acc",
        "Val Loss 2.125",
    ],
)
def test_a_bar_whose_words_name_a_metric_without_a_value_is_no_training(words: str) -> None:
    assert "step" not in curve(f"{words}: {FULL.format(n=50)}")


@pytest.mark.parametrize(
    "words", ["Training loss", "loss 0.31, acc 0.4", "train ppl: 8.1", "Epoch 3 [loss 0.31]"]
)
def test_a_bar_whose_words_are_of_training_counts_steps(words: str) -> None:
    assert curve(f"{words}: {FULL.format(n=50)}")["step"] == 50


@pytest.mark.parametrize(
    "heading",
    [
        "[INFO] Evaluation",
        "Evaluating on dev set...",
        "Running validation",
        "2026-01-01 10:00:00,123 - INFO - Evaluating the model",
        "== Test ==",
        "Start evaluation",
        "Evaluating model on the validation set...",
        "[INFO] Starting evaluation on 500 samples",
        "***** Running Evaluation *****\n  Num examples = 500\n  Batch size = 8",
    ],
)
def test_a_bare_bar_below_the_heading_of_an_evaluation_is_no_training(heading: str) -> None:
    above = heading.count("\n") * [None]
    evaluated = ["  3%|3         | 13/431 [00:01<00:40,  9.75it/s]", FULL.format(n=431)]
    log = [
        "epoch 0",
        FULL.format(n=3517),
        heading,
        *evaluated,
        "MPJPE: 164.30 mm",
        "epoch 1",
        FULL.format(n=3517),
    ]
    steps = [one.get("step") for one in curves("\n".join(log))]
    assert steps == [None, 3517, *above, None, None, None, None, None, 3517]


@pytest.mark.parametrize(
    "below",
    [
        "Epoch 2:  10%|#         | 40/400 [00:04<00:40,  9.75it/s]",
        " 10%|#         | 40/400 [00:04<00:40,  9.75it/s, loss=0.5]",
        "training:  10%|#         | 40/400 [00:04<00:40,  9.75it/s]",
    ],
)
def test_a_bar_of_training_below_such_a_heading_counts_steps(below: str) -> None:
    assert curves(f"[INFO] Evaluation\n{below}")[1]["step"] == 40


def test_below_a_full_bar_of_an_evaluation_the_next_bare_bar_is_training_s() -> None:
    log = f"[INFO] Evaluation\n{FULL.format(n=431)}\n 10%|#         | 40/3517 [00:04<05:40,  9.75it/s]"
    assert [one.get("step") for one in curves(log)] == [None, None, 40]


@pytest.mark.parametrize(
    ("glued", "want"),
    [
        ("epoch: 0, loss: 2.067, loss_RV: 0.776", {"epoch": 0, "loss": 2.067}),
        ("Epoch 3 | train loss 2.0", {"epoch": 3, "loss": 2.0}),
        ("Epoch [4/10] train_loss=1.5 val_loss=2.5", {"epoch": 4, "loss": 1.5, "val_loss": 2.5}),
        ("epoch=7 loss=1.5 acc=0.3", {"epoch": 7, "loss": 1.5}),
        ("loss 2.0", {"step": 64, "total_steps": 301, "loss": 2.0}),
    ],
)
def test_a_bar_s_count_is_no_step_of_the_epoch_that_is_glued_behind_it(
    glued: str, want: dict[str, float]
) -> None:
    assert curve(f" 21%|##  | 64/301 [41:04<2:31:51, 38.44s/it]{glued}") == want


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("Epoch [1/300] private validation Loss: 1.75, Accuracy: 31.8", 1.75),
        ("Epoch 1 public test loss: 1.75", 1.75),
        ("epoch 1, German dev loss: 1.75", 1.75),
        ("Epoch 1 | in-domain validation loss 1.75", 1.75),
        ("Epoch 1 box val loss: 1.75, cls val loss: 0.3", None),
        ("private validation Loss: 1.75", None),
    ],
)
def test_the_words_before_a_held_out_set_say_which_set_it_is(line: str, want: float | None) -> None:
    assert curve(line).get("val_loss") == want
    assert "loss" not in curve(line)


@pytest.mark.parametrize(
    ("log", "want"),
    [
        (
            """[1/15] - Training loss: 1.77 - Training accuracy: 30.0
[1/15] - Validation loss: 1.55 - Validation accuracy: 55.1
[2/15] - Training loss: 1.29 - Training accuracy: 51.0""",
            [{"epoch": 1, "loss": 1.77}, {"epoch": 1, "val_loss": 1.55}, {"epoch": 2, "loss": 1.29}],
        ),
        (
            "(0/20) train loss 0.51 | val loss 0.62\n(1/20) train loss 0.41 | val loss 0.52",
            [{"epoch": 0, "loss": 0.51, "val_loss": 0.62}, {"epoch": 1, "loss": 0.41, "val_loss": 0.52}],
        ),
        (
            "[001/100] train_loss: 0.51 val_loss: 0.62\n[012/100] train_loss: 0.41 val_loss: 0.52",
            [{"epoch": 1, "loss": 0.51, "val_loss": 0.62}, {"epoch": 12, "loss": 0.41, "val_loss": 0.52}],
        ),
        (
            "1/3 - Train loss: 0.5\n1/3 - Test loss: 0.6\n2/3 - Train loss: 0.4",
            [{"epoch": 1, "loss": 0.5}, {"epoch": 1, "val_loss": 0.6}, {"epoch": 2, "loss": 0.4}],
        ),
        # Steps: counted from the first report's interval on, or more than a training has epochs.
        (
            "[100/500] train loss: 0.5\n[200/500] train loss: 0.4",
            [
                {"step": 100, "total_steps": 500, "loss": 0.5},
                {"step": 200, "total_steps": 500, "loss": 0.4},
            ],
        ),
        (
            "[1/300000] Train loss: 0.5, Valid loss: 0.6",
            [{"step": 1, "total_steps": 300000, "loss": 0.5, "val_loss": 0.6}],
        ),
        ("[1/15] loss: 0.5", [{"step": 1, "total_steps": 15, "loss": 0.5}]),
        (
            "epoch 1/10\n1/32, train_loss: 0.61",
            [{"epoch": 1}, {"step": 1, "total_steps": 32, "loss": 0.61}],
        ),
    ],
)
def test_a_nameless_count_before_the_loss_of_a_set_is_an_epoch(
    log: str, want: list[dict[str, float]]
) -> None:
    assert curves(log) == want


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("peersA step 2 loss 0.5", {"step": 2, "loss": 0.5}),
        ("gpt2 step 40 loss 3.25", {"step": 40, "loss": 3.25}),
        ("model-a step 40 loss 3.25", {"step": 40, "loss": 3.25}),
        ("gpt2 step=40 loss=3.25", {"step": 40, "loss": 3.25}),
        ("resnet50 iteration 40/100 train loss 3.25", {"step": 40, "total_steps": 100, "loss": 3.25}),
        ("run7 epoch 3 loss 0.5", {"epoch": 3, "loss": 0.5}),
        ("hubert-tiny update 200 | loss 6.210 | lr 1.6e-05", {"step": 200, "loss": 6.21}),
        ("bart.base updates: 300, loss: 3.1", {"step": 300, "loss": 3.1}),
        ("w2v num_updates=300 loss=3.1", {"step": 300, "loss": 3.1}),
        # Counters of something else.
        ("max step 40 loss 3.25", {"loss": 3.25}),
        ("time step 40 loss 3.25", {"loss": 3.25}),
        ("denoising step 4 loss 3.25", {"loss": 3.25}),
        ("inner step 4 loss 3.25", {"loss": 3.25}),
        ("skipped updates 4 loss 3.25", {"loss": 3.25}),
        ("target update 4 loss 3.25", {"loss": 3.25}),
        ("gpt2 step 40", {}),
    ],
)
def test_a_word_before_a_counter_leaves_it_one(line: str, want: dict[str, float]) -> None:
    assert curve(line) == want


@pytest.mark.parametrize(
    ("line", "val_loss"),
    [
        ("held-out set after update 400 | loss 5.902 | wer 71.30", 5.902),
        ("Held out data after step 400: loss 4.8", 4.8),
        ("heldout split at iteration 20, loss=2.25", 2.25),
        ("dev-clean after update 400 | loss 5.014", 5.014),
    ],
)
def test_the_loss_of_a_held_out_set_after_an_update_is_no_training_loss(line: str, val_loss: float) -> None:
    found = curve(line)
    assert found["val_loss"] == val_loss
    assert "loss" not in found


def _bar(count: int, loss: str | None, left: str = "00:10") -> str:
    shown = f", loss={loss}" if loss is not None else ""
    return f"\rEpoch 1:  25%|##        | {count}/4 [00:00<{left},  2.00s/it{shown}]"


def _set_before_counted(end: str) -> str:
    """A bar whose loss is set, and drawn, before its count."""
    losses = ["0.60", "0.59", "0.58", "0.57"]
    states = [_bar(at, loss) + _bar(at + 1, loss) for at, loss in enumerate(losses)]
    return "".join(states) + end


@pytest.mark.parametrize(
    "end",
    [
        "\n",
        "\r      \n",  # wiped
        _bar(4, "0.57", "00:00") + "\n",  # drawn once more as it closes
        "\r      \rEpoch 1/30, Train Loss: 0.58, Val Loss: 0.61\n",
    ],
    ids=["plain", "wiped", "closed", "summed up"],
)
def test_a_bar_redrawn_at_its_end_counts_each_step_once(
    end: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    found = printed(_set_before_counted(end), tmp_path, capsysbinary)
    assert [(one["step"], one["loss"]) for one in found if "step" in one] == [
        (1, 0.6),
        (2, 0.59),
        (3, 0.58),
        (4, 0.57),
    ]


def test_a_validation_s_bar_within_a_redrawn_line_is_one_point_of_its_own(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    passes = [
        f"\rValidating:  40%|####      | {at}/50 [00:01<00:02,  9.75it/s, val_loss={loss}]"
        for at, loss in ((10, 2.4), (30, 2.3), (50, 2.2))
    ]
    text = _bar(1, "0.6") + _bar(2, "0.5") + "".join(passes) + _bar(3, "0.5") + _bar(4, "0.5") + "\n"
    found = printed(text, tmp_path, capsysbinary)
    assert [(one.get("step"), one.get("loss"), one.get("val_loss")) for one in found] == [
        (1, 0.6, None),
        (2, 0.5, None),
        (None, None, 2.2),
        (3, 0.5, None),
        (4, 0.5, None),
    ]


def test_states_without_a_step_do_not_show_that_steps_are_drawn_twice() -> None:
    states = [(1, 0.5), (None, None), (None, None), (2, 0.5), (3, 0.5)]
    assert standing_states(states) == [True, False, True, True, True]
