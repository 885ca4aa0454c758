"""What stands around a value: which set it is of, who printed it, whether it is one of several. Spellings that blind rounds found."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.sources.metrics import MetricReader
from supervisor.sources.metrics.reader import standing_states
from tests.corpus.test_metrics_corpus import read
from tests.sources.metric_lines import values


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("[val: 1, 50 / 156] Loss/total: 0.31", {"val_loss": 0.31}),
        ("[ Valid | 003/100 ] loss = 0.31, acc = 0.9", {"val_loss": 0.31}),
        ("Epoch 3: Dev.  Loss: 7.445", {"epoch": 3, "val_loss": 7.445}),
        ("Test Iter:   12/  35. Loss: 0.31:  34%|███ | 12/35 [00:10<00:20,  1.2it/s]", {"val_loss": 0.31}),
        ("Epoch 3 iter 20 Train: 0.31 loss", {"epoch": 3, "step": 20, "loss": 0.31}),
        ("Labeled Target set: Average loss: 4.9457, Accuracy: 12/1134", {"val_loss": 4.9457}),
        ("sketch to painting Train Ep: 100 lr0.01 \t Loss Classification: 5.1", {"epoch": 100, "loss": 5.1}),
        ("Epoch 3 loss function: 2.0", {"epoch": 3}),
        (
            "step 20 loss 2.125 [mem: 6.50e+04] (1230.5 ms)",
            {"step": 20, "loss": 2.125, "step_time_s": 1.2305},
        ),
        ("step 20 loss 2.125 (best 1230.5 ms)", {"step": 20, "loss": 2.125}),
        ("step:20 - actor/pg_loss:0.0 - actor/kl_loss:0.9 - actor/loss:-0.25", {"step": 20, "loss": -0.25}),
        ("step:20 - actor/pg_loss:0.5 - actor/kl_loss:0.9", {"step": 20, "loss": 0.5}),
        ("step 20 [loss, lr]: [2.125, 3e-4, 7]", {}),
        ("Source set: loss 0.31", {"val_loss": 0.31}),
        ("Train set: Average loss: 0.31, Accuracy: 90%", {"loss": 0.31}),
        ("Epoch 3 training set: loss 0.31", {"epoch": 3, "loss": 0.31}),
    ],
)
def test_the_set_is_told_by_what_stands_beside(line: str, want: dict[str, float]) -> None:
    found = values(line)
    assert {name: found.get(name) for name in ("epoch", "step", "loss", "val_loss")} == {
        name: want.get(name) for name in ("epoch", "step", "loss", "val_loss")
    }


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("[3/100]:  50%|█████     | 5/10 [00:05<00:05,  1.00it/s, loss=0.31]", {"epoch": 3, "step": 5}),
        (
            "41/100 [00:03<00:05, 4.0it/s, loss=0.31]",
            {"step": 41, "total_steps": 100, "eta_s": 5, "step_time_s": 0.25},
        ),
        (
            "disc: -0.012;gen: 0.31:  50%|█████     | 5/10 [00:10<00:10,  2.00s/it]",
            {"step": 5, "total_steps": 10, "step_time_s": 2.0},
        ),
        ("disc: -0.012;gen: 0.31: : 11it [00:30,  2.50s/it]", {"step": 11, "step_time_s": 2.5}),
        ("Batch 20 - Train error  0.0863", {"step": 20}),
        ("epoch 3 batch_idx 20/400 loss 0.31", {"epoch": 3, "step": 20, "total_steps": 400, "loss": 0.31}),
        ("LR: (0.00002/0.001) | Step: 264 | loss: 0.31", {"lr": 2e-05, "step": 264, "loss": 0.31}),
        ('{"name": "loss", "step": 12, "value": 0.31}', {"step": 12, "loss": 0.31}),
        ("[42292] [MainThread] Epoch 3, step 20, loss 0.31", {"epoch": 3, "step": 20, "loss": 0.31}),
        ("[ INFO : 2024-01-01 10:11:12 ] Epoch 3 step 20 loss 0.31", {"epoch": 3, "step": 20, "loss": 0.31}),
        ("eta:21:41:36,lr:0.0004,[2/100:5/500] ==> loss:26.19", {"eta_s": 78096, "step": 5, "loss": 26.19}),
        ("train loss of epoch 20: 0.118", {"epoch": 20, "step": None, "loss": 0.118}),
        ("Step: 100 Gen_loss: -0.0 Dis_loss: 13.8 Cls_loss: N/A Topk: N/A", {"step": 100, "loss": None}),
        ("第3轮 训练损失=0.512 验证损失=0.488", {"epoch": 3, "loss": 0.512, "val_loss": 0.488}),
        ("第[3/50]轮 训练损失: 0.512", {"epoch": 3, "loss": 0.512}),
        ("第3エポック 損失: 0.51", {"epoch": 3, "loss": 0.51}),
        ("INFO: Epoch 3 out of 20", {"epoch": 3, "total_epochs": 20}),
        ("Epoch 3 out of 20, loss: 0.51", {"epoch": 3, "total_epochs": 20, "loss": 0.51}),
        ("epoch: 3, 2.92s per iter, lr: 0.0003", {"epoch": 3, "step_time_s": 2.92, "lr": 0.0003}),
        ("[Ep 09] loss 0.8122/0.8130 | Acc 75.21%", {"epoch": 9, "loss": 0.8122, "val_loss": None}),
        ("Epoch 3: val loss 0.81/0.83", {"epoch": 3, "loss": None, "val_loss": 0.81}),
        ("epoch 3 loss 1/2", {"epoch": 3, "loss": None}),
        ("Loss: 0.887, MeanIU:  0.6256, Best_mIoU:  0.6349", {"loss": None, "val_loss": 0.887}),
        ("Train loss: 0.887, acc: 0.62, best_acc: 0.63", {"loss": 0.887, "val_loss": None}),
        ("Epoch 3 loss: 0.887, acc: 0.62, best_acc: 0.63", {"loss": 0.887, "val_loss": None}),
        ("loss: 0.887 best_loss: 0.85", {"loss": 0.887, "val_loss": None}),
        ("Epoch 5, speed: 1.52s/itr, loss: 0.31", {"epoch": 5, "step_time_s": 1.52, "loss": 0.31}),
    ],
)
def test_counters_and_rates_in_more_spellings(line: str, want: dict[str, float | None]) -> None:
    found = values(line)
    assert {name: found.get(name) for name in want} == want


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("world=2 batch=8 accum=4 global=64", {}),
        ("batch: 8 | accum: 4 | world: 2", {}),
        ("batch=16 lr=0.001", {}),
        ("world 2 lr 0.0003 steps 90", {}),
        ("workers: 4, max_steps: 500", {}),
        ("steps 90 loss 0.31 gpus 2", {"step": 90, "loss": 0.31}),
        ("steps: 100 lr: 0.01", {"step": 100}),
        ("batch=8 accum=4 loss=0.31", {"loss": 0.31}),
        ("step=4 batch=16 accum=2 loss=0.31", {"step": 4, "loss": 0.31}),
        ("batch=40 loss=0.31 lr=0.001", {"step": 40, "loss": 0.31}),
        ("batch 20, error 0.31", {"step": 20}),
        ("batch 20/400 loss 0.31", {"step": 20, "total_steps": 400, "loss": 0.31}),
        ("Epoch 3 batch 40: loss 0.31", {"epoch": 3, "step": 40, "loss": 0.31}),
        ("Epoch 3, batch 40", {"epoch": 3, "step": 40}),
    ],
)
def test_a_batch_beside_settings_is_its_size_and_beside_a_measurement_the_step(
    line: str, want: dict[str, float]
) -> None:
    found = values(line)
    names = ("epoch", "step", "total_steps", "loss")
    assert {name: found[name] for name in names if found.get(name) is not None} == want


def test_a_time_alone_before_each_step_is_the_time_of_the_step() -> None:
    lines = ["Timer: 1.25", "epoch:0 || iter:0 || Loss:3.5", "Timer: 0.5", "epoch:0 || iter:10 || Loss:3.25"]
    lines += [
        "start eval....",
        "Timer: 140.5",
        "test epoch:0 || Loss:3.75",
        "Timer: 0.75",
        "epoch:1 || iter:20 || Loss:3.0",
    ]
    reader = MetricReader()
    found = [reader.feed(line) for line in lines]
    assert [one.values.get("step_time_s") if one is not None else None for one in found] == [
        *(None, None, 0.5, None),
        *(None, None, None, 0.75, None),
    ]


@pytest.mark.parametrize(
    ("text", "took_s"),
    [
        ("Epoch 002 | Train Loss: 1.8542 | Epoch Time: 23.52 s", 23.52),
        ("Epoch 2/50 | D_loss=0.1599 | G_loss=0.5027 | Time=10.83s", 10.83),
        ("Train Epoch: 2/70 ...\n    total_loss: 22.4334 time: 10m 8s", 608.0),
        ("Epoch: 02 | Epoch Time: 0m 35s", 35.0),
        ("Epoch 3 | loss 0.3 | epoch_time 1.5 min", 90.0),
        ("Epoch 5 took 33.2 seconds, loss 0.4", 33.2),
        ("[INFO] Epoch train finished, avg_loss=4.4822, time=36.9s", 36.9),
        # Of a step, of a share of an epoch, of the batches of it, of held-out data.
        ("epoch 3 step 100 loss 0.3 time 0.4", None),
        ("{'loss': 0.3, 'epoch': 0.05, 'time': 3.2}", None),
        ("Epoch 3: loss: 0.3 time: 0.4 data: 0.01", None),
        ("Epoch 3: 50%|###   | 5/10 [00:01<00:01, 4.0it/s, loss=0.3, time=2.5]", None),
        ("Epoch 132: testing psnr = 34.28, ssim = 0.937, time: 0.02", None),
        ("Saving epoch 5 took 33.2 seconds", None),
        ("Step 5 took 33.2 seconds, loss 0.4", None),
        ("Time 08h 36m 42s, Avg Reward 0.064, Best Reward 0.184", None),
    ],
)
def test_a_time_beside_an_epoch_and_no_step_is_the_time_of_the_epoch(text: str, took_s: float | None) -> None:
    found = [values["epoch_time_s"] for values in read(text).values() if "epoch_time_s" in values]
    assert found == ([took_s] if took_s is not None else [])


def test_a_time_alone_between_epochs_is_no_time_of_a_step() -> None:
    epoch = ["step 10 loss 3.5", "step 20 loss 3.25", "Time: 35.5 s"]
    reader = MetricReader()
    found = [reader.feed(line) for line in [*epoch, *epoch, *epoch]]
    assert not any("step_time_s" in one.values for one in found if one is not None)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("2020-11-08 20:32:35 [1,3]<stderr>:epoch: 1 iter: 100 loss: 7.0071", 3),
        ("[HUGECTR][03:13:26][INFO][RANK2]: Iter: 300 loss: 0.31", 2),
    ],
)
def test_a_rank_may_stand_behind_a_time_or_tags(line: str, rank: int) -> None:
    sample = MetricReader().feed(line)
    assert sample is not None
    assert sample.rank == rank


@pytest.mark.parametrize(
    "line",
    [
        "  {name} {n} loss: 796241.406250",
        "Iteration 150 {name} {n} loss: 3.21",
        "step 150 | {name} {n} loss = 3.21",
    ],
)
@pytest.mark.parametrize("name", ["Content", "Style", "head", "Task", "stage"])
@pytest.mark.parametrize("n", [1, 2, 12])
def test_a_numbered_loss_is_one_of_several(line: str, name: str, n: int) -> None:
    assert "loss" not in values(line.format(name=name, n=n))


@pytest.mark.parametrize("name", ["Epoch", "step", "Iteration", "batch", "Episode", "Game", "Train"])
def test_a_number_that_counts_is_no_part_of_a_loss(name: str) -> None:
    assert values(f"{name} 12 loss: 3.21")["loss"] == 3.21


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("Best model at step 5000:\n  train loss: 3.21e-03\n  test loss: 4.5e-03", {}),
        (
            "| Name | step | train_loss | val_loss |\n| Value | 100 | 0.31 | 0.42 |",
            {1: {"step": 100, "loss": 0.31, "val_loss": 0.42}},
        ),
        (
            "epoch  iteration  main/loss  main/loss_ctc  main/loss_att\n0      100        624.802    1546.44        229.815",
            {1: {"step": 100, "loss": 624.802}},
        ),
        ("epoch,loss_ctc,loss_att\n3,1546.44,229.815", {1: {}}),
        # A bar begins with blanks, as what belongs to a call does; it belongs to none.
        (
            "  with torch.enable_grad(), device_autocast_ctx, autocast(**kwargs):\n  1%|          | 3/657 [00:22<1:16:11,  6.99s/it]",
            {1: {"step": 3}},
        ),
    ],
)
def test_lines_above_say_what_the_numbers_are(text: str, want: dict[int, dict[str, Any]]) -> None:
    found = read(text)
    wanted = ("step", "loss", "val_loss")
    assert {row: {name: got[name] for name in wanted if name in got} for row, got in found.items()} == want


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("12%|#2 | 25/1617 [00:51<54:07, 2.04s/it, loss=1.42, lr=1e-5]step 26 loss 1.30", {"step": 26, "loss": 1.3, "lr": 1e-5}),
        ("12%|#2 | 25/1617 [00:51<54:07, 2.04s/it, loss=1.42]{'loss': 1.3, 'epoch': 0.2}", {"step": 25, "loss": 1.3}),
        ("Epoch [1/3]: [19/64]  30%|## , loss=4.8 [00:00<00:00]Epoch[1] Iteration[20/192] Loss: 4.5", {"step": 20, "loss": 4.5}),
        ("12%|#2 | 25/1617 [00:51<54:07, 2.04s/it, loss=1.42]", {"step": 25, "loss": 1.42}),
    ],
)  # fmt: skip
def test_a_message_behind_a_bar_is_believed_before_the_bar(line: str, want: dict[str, float]) -> None:
    found = values(line)
    assert {name: found.get(name) for name in want} == want


@pytest.mark.parametrize(
    ("states", "before", "stands"),
    [
        ([], None, []),
        ([(1, 2.0)], None, [True]),
        # `update`, then `set_postfix`: the same step first with the loss of the step before.
        ([(1, 3.0), (1, 2.0)], None, [False, True]),
        ([(1, 3.0), (1, 2.0), (2, 2.0), (2, 1.0)], None, [False, True, False, True]),
        # Several steps between two states of the counter: only what is drawn again is no other point.
        (
            [(1, 3.0), (1, 2.0), (4, 2.0), (4, 1.0), (4, 0.1), (4, 1.6)],
            None,
            [False, True, False, True, True, True],
        ),
        # `set_postfix` first: the same loss with the step before.
        ([(1, 3.0), (2, 3.0), (2, 2.0), (3, 2.0)], None, [False, True, False, True]),
        # No step is drawn twice: an equal loss is nothing but an equal loss.
        ([(1, 3.0), (2, 3.0), (3, 2.0)], None, [True, True, True]),
        # What was read last tells whether the first draws its step again.
        ([(2, 3.0), (3, 3.0)], (2, 4.0), [False, True]),
        ([(2, 3.0), (3, 3.0)], (1, 4.0), [True, True]),
        ([(2, 3.0)], (2, 3.0), [True]),
        # A state without a loss is no point, unless it is the newest.
        ([(1, None), (2, 3.0)], None, [False, True]),
        ([(1, 3.0), (2, None)], None, [True, True]),
    ],
)
def test_of_a_bar_that_is_drawn_twice_a_step_the_later_state_counts(
    states: list[tuple[float | None, float | None]],
    before: tuple[float | None, float | None] | None,
    stands: list[bool],
) -> None:
    assert standing_states(states, before) == stands
