"""Lines put together at random from parts whose meaning is known are read for what they say.

Each part (a counter, a loss, a rate …) is drawn from many spellings; separators, brackets, prefixes and the order
change. What fails names the spelling that is too narrow, so that the grammar is mended and not one project's line.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from supervisor.cli.metrics import record_of
from supervisor.sources.metrics import MetricReader
from supervisor.text.decode import clean

COUNTERS = (
    "step", "Step", "STEP", "iter", "Iter", "iteration", "Iteration", "it", "global_step", "Global Step", "batch", "train_step", "itr", "update",
    "num_updates", "training step", "train iter", "optimizer_step", "trainer/global_step", "current_step", "步数", "ステップ", "шаг", "스텝",
)  # fmt: skip
EPOCHS = (
    "epoch",
    "Epoch",
    "EPOCH",
    "ep",
    "train epoch",
    "current_epoch",
    "epoch_num",
    "trainer/epoch",
    "epoch_idx",
    "轮次",
    "エポック",
    "эпоха",
)
NAMES = {
    "loss": (
        "loss", "Loss", "LOSS", "train_loss", "Train Loss", "training loss", "tr_loss", "trn_loss", "total_loss", "Total Loss", "avg loss", "average loss",
        "mean loss", "running_loss", "loss_avg", "step_loss", "batch_loss", "minibatch loss", "epoch_loss", "lm loss", "ce_loss", "MSE loss", "train/loss",
        "loss/train", "train/total_loss", "losses/total_loss", "nll_loss", "trainLoss", "TrainLoss", "loss_train", "cross entropy loss", "objective", "cost",
        "ema_loss", "loss (avg)", "mlm_loss", "train.loss", "train_loss_step", "损失", "训练损失", "loss值", "平均损失", "損失", "потери", "손실",
    ),
    "val_loss": (
        "val_loss", "val loss", "Val Loss", "valid_loss", "Validation Loss", "eval_loss", "Eval Loss", "test loss", "dev loss", "loss_val", "loss/val",
        "val/loss", "eval/loss", "loss_valid", "valLoss", "Vali Loss", "held-out loss", "avg_val_loss", "validation_loss", "loss_test", "验证损失", "検証損失",
    ),
    "lr": (
        "lr", "LR", "Lr", "learning_rate", "learning rate", "Learning Rate", "learning-rate", "LearningRate", "lr_0", "lrate", "train/lr", "lr-AdamW",
        "current lr", "cur_lr", "lr_group_0", "optim/lr", "学习率", "last_lr", "learn rate", "learning_rate_0", "学習率",
    ),
    "grad_norm": (
        "grad_norm", "grad norm", "Grad Norm", "gnorm", "gradient norm", "gradnorm", "grad-norm", "train/grad_norm", "total_norm", "global grad norm",
        "gradient_norm", "grad_l2_norm",
    ),
    "tokens_per_sec": (
        "tok/s", "tokens/s", "tokens/sec", "tokens_per_sec", "tokens_per_second", "tps", "tokens per second", "Tokens/Sec", "throughput (tok/s)",
        "throughput(tokens/s)", "toks/s", "tok_s", "wps", "tgs", "tokens/s/gpu", "tokens/sec/gpu", "train/tokens_per_sec",
    ),
    "samples_per_sec": (
        "samples/s", "samples/sec", "samples_per_second", "imgs/s", "images/sec", "examples/sec", "ips", "throughput (samples/s)", "samples per second",
        "seq/s", "train_samples_per_second", "images/second", "throughput(img/s)", "speed (samples/s)",
    ),
    "step_time_s": (
        "step_time", "step time", "iter_time", "time/step", "time per step", "sec/step", "s/step", "s/it", "sec_per_step", "batch_time", "Batch Time",
        "time_per_iteration", "iteration time", "step_time_s", "Time/iter", "avg step time", "per step time",
    ),
    "memory_gib": (
        "mem", "memory", "gpu_mem", "GPU memory", "max_mem", "peak memory", "VRAM", "gpu_memory", "max_memory_allocated", "cuda_mem", "gpu mem used",
        "memory_allocated", "Mem", "显存",
    ),
    "eta_s": (
        "eta", "ETA", "time left", "remaining", "Remaining", "remaining time", "time remaining", "Remain", "left", "est. remaining", "Estimated time left",
        "time to finish", "剩余时间",
    ),
}  # fmt: skip
PREFIXES = (
    "", "2024-01-02 03:04:05,678 - INFO - ", "[2024-01-02 03:04:05] ", "INFO:root:", "[rank0]: ", "2024-01-02 03:04:05.123 | INFO     | __main__:train:120 - ",
    "I0102 03:04:05.123456 1234 train.py:318] ", "[INFO] ", "🚀 ", "📊 ", "\x1b[32m", "[train] ", "Train: ", "[TRAIN] ", "  ", "- ", "* ", "train | ", "==> ", ">> ",
    "[03:04:05] ", "03:04:05 ", "Jan 02 03:04:05 ", "[2024/01/02 03:04:05] ppcls INFO: ", "INFO  [train.py:88] ", "2024-01-02T03:04:05Z ",
    "01/02/2024 03:04:05 - INFO - __main__ -   ", "[1,0]<stdout>:", "12:30:01 | ", "[GPU0] ", "(main pid=1234) ", "worker-0: ",
    "[INFO|trainer.py:120] 2024-01-02 03:04:05,678 >> ",
)  # fmt: skip
JOINTS = (" ", ", ", " | ", "  ", "; ", " - ", "\t", " || ", ",\t", " · ")
# Each with e, E (epochs) and s, S (steps).
HEADS: tuple[tuple[str, str], ...] = (
    ("Epoch [{e}][{s}/{S}]", "esS"), ("Epoch: [{e}][{s}/{S}]", "esS"), ("Epoch [{e}/{E}][{s}/{S}]", "esS"), ("[{e}/{E}][{s}/{S}]", "esS"),
    ("Epoch [{e}/{E}], Step [{s}/{S}]", "esS"), ("Epoch {e}/{E} Batch {s}/{S}", "esS"), ("[Epoch {e}/{E}] [Batch {s}/{S}]", "esS"),
    ("epoch:{e}/{E} iter:{s}/{S}", "esS"), ("Epoch[{e}/{E}]({s}/{S})", "esS"), ("Epoch ({e}/{E}), Step ({s}/{S})", "esS"), ("Epoch {e}, {s}/{S}", "esS"),
    ("Epoch {e} | {s}/{S}", "esS"), ("Epoch {e}: [{s}/{S}]", "esS"), ("epoch {e} ({s}/{S})", "esS"), ("Epoch {e}, batch {s}/{S}", "esS"),
    ("Epoch {e}  iter {s} of {S}", "esS"), ("ep {e} it {s}", "es"), ("E{e} S{s}", "es"), ("ep{e} it{s}", "es"), ("epoch{e} step{s}", "es"),
    ("[epoch {e}, iter {s}]", "es"), ("<epoch:{e}, iter:{s}>", "es"), ("Epoch {e:03d} Iter {s:06d}", "es"), ("Epoch {e}/{E}", "e"), ("epoch [{e}/{E}]", "e"),
    ("{e}/{E} epochs", "e"), ("Epoch({e}/{E})", "e"), ("epoch {e} of {E}", "e"), ("Epoch{e}", "e"), ("Epoch #{e}", "e"), ("[Epoch: {e}]", "e"), ("<Epoch {e}>", "e"),
    ("step {s} of {S}", "sS"), ("Iteration {s} of {S}", "sS"), ("[{s}/{S}]", "sS"), ("[iter {s}/{S}]", "sS"), ("{s}/{S}", "sS"), ("{s:,}/{S:,}", "sS"),
    ("Progress: {s}/{S}", "sS"), ("step ({s}/{S})", "sS"), ("Step: {s} / {S}", "sS"), ("{s}/{S} steps", "sS"), ("Step #{s}", "s"),
)  # fmt: skip
Part = tuple[str, float]


def clock(draw: random.Random) -> Part:
    total = draw.randrange(60, 90_000)
    hours, minutes, rest = total // 3600, total // 60 % 60, total % 60
    text = draw.choice(
        (
            f"{hours}:{minutes:02}:{rest:02}",
            f"{hours}h{minutes:02}m{rest:02}s",
            f"{hours}h {minutes}m {rest}s",
        )
    )
    return text, total


def decimal(draw: random.Random) -> Part:
    value = draw.choice((draw.uniform(0.01, 12), draw.uniform(50, 900), draw.uniform(0.0001, 0.01)))
    text = draw.choice((f"{value:.4f}", f"{value:.6f}", f"{value:.3e}", repr(value)))
    return text, float(text)


def small(draw: random.Random) -> Part:
    value = 10 ** draw.uniform(-7, -1)
    text = draw.choice((f"{value:.2e}", f"{value:.6E}", repr(value)))
    return text, float(text)


def rate(draw: random.Random) -> Part:
    value = draw.uniform(20, 90_000)
    text = draw.choice((f"{value:.1f}", f"{int(value):,}", f"{value:,.1f}", f"{int(value)}"))
    return text, float(text.replace(",", ""))


def duration(draw: random.Random, *, named: bool) -> Part:
    value = draw.uniform(0.05, 9)
    if named or draw.random() < 0.4:
        text = f"{value:.3f}"
        return text, float(text)
    if draw.random() < 0.5:
        return f"{value:.3f}{draw.choice(('s', ' s', ' sec'))}", round(value, 3)
    return f"{value * 1000:.1f}{draw.choice(('ms', ' ms'))}", value


def memory(draw: random.Random) -> Part:
    value = draw.uniform(3, 79)
    blank = draw.choice(("", " "))
    if draw.random() < 0.5:
        return f"{value:.2f}{blank}{draw.choice(('GB', 'GiB', 'G'))}", value
    return f"{int(value * 1024)}{blank}{draw.choice(('MB', 'MiB', 'M'))}", value


PARTS: dict[str, Callable[[random.Random], Part]] = {
    "loss": decimal, "val_loss": decimal, "lr": small, "grad_norm": decimal, "tokens_per_sec": rate, "samples_per_sec": rate, "memory_gib": memory, "eta_s": clock,
}  # fmt: skip


def line(draw: random.Random) -> tuple[str, dict[str, float], set[str]]:
    """A line, what it says, and the spellings it is made of."""
    separator = draw.choice((": ", "=", ": ", " = ", " "))
    # Blanks between names and values and between pairs alike: who belongs to whom would be a guess.
    joint = draw.choice([j for j in JOINTS if j.strip() or separator != " "])
    step, epoch = draw.randrange(1, 90_000), draw.randrange(90)
    steps, epochs = step + draw.randrange(1, 90_000), epoch + draw.randrange(1, 200)
    want: dict[str, float] = {}
    if draw.random() < 0.5:
        head, says = draw.choice(HEADS)
        parts, used = [head.format(e=epoch, E=epochs, s=step, S=steps)], {head}
        joint = ", " if joint == " - " else joint
    else:
        name, says = draw.choice(COUNTERS), "s"
        parts, used = [f"{name}{separator}{step}"], {name}
        if draw.random() < 0.5:
            parts, says = (
                [
                    f"{name}{separator}{draw.choice((f'{step}/{steps}', f'{step} / {steps}', f'[{step}/{steps}]'))}"
                ],
                "sS",
            )
        if draw.random() < 0.5:
            name = draw.choice(EPOCHS)
            parts.insert(0, f"{name}{separator}{epoch}")
            says += "e"
            used.add(name)
    want |= {
        key: value
        for mark, key, value in (("s", "step", step), ("S", "total_steps", steps), ("e", "epoch", epoch))
        if mark in says
    }
    for key in ["loss", *draw.sample([k for k in NAMES if k != "loss"], draw.randrange(4))]:
        name = draw.choice(NAMES[key])
        if key == "step_time_s":
            if "s" not in says:
                continue
            text, want[key] = duration(draw, named="/" in name or "sec" in name or name.endswith("_s"))
        else:
            text, want[key] = PARTS[key](draw)
        parts.append(f"{name}{separator}{text}")
        used.add(name)
    prefix = draw.choice(PREFIXES)
    used.add(prefix)
    return prefix + joint.join(parts), want, used


def wrong(text: str, want: dict[str, float]) -> set[str]:
    """The keys that are missing, differ, or (of those that would draw a false curve) are invented."""
    sample = MetricReader().feed(clean(text.encode()))
    got = record_of(0, sample) if sample is not None else {}
    missed = {
        key
        for key, value in want.items()
        if not isinstance(got.get(key), (int, float)) or abs(got[key] - value) > 0.01 * max(abs(value), 1e-12)
    }
    curves = {"loss", "val_loss", "step", "lr", "epoch", "grad_norm"}
    return missed | {key for key in curves if key in got and key not in want}


def test_known_parts_are_read_however_they_are_put_together() -> None:
    draw = random.Random(20)
    bad: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    values = misses = 0
    examples = []
    for _ in range(2000):
        text, want, used = line(draw)
        missed = wrong(text, want)
        values += len(want)
        misses += len(missed)
        seen.update(used)
        if missed:
            bad.update(used)
            examples.append(f"{sorted(missed)}: {text}")
    report = "\n".join(examples[:20])
    assert misses <= 0.006 * values, f"{misses} of {values}\n{report}"
    narrow = [one for one, count in seen.items() if count >= 10 and bad[one] > 0.2 * count]
    assert not narrow, f"{narrow}\n{report}"


@pytest.mark.parametrize(
    "text",
    [
        "[0/0] Exception out of resource: shared memory, Required: 163840",
        "Losses: [2.412, 2.312, 6.612], lr: 0.0001",
        "export STEPS=600 STEP_S=0.2",
        "Acc 45.2 (452/1000)",
        "batch_size: 128, lr: 0.1, epochs: 200, momentum: 0.9",
        "Epoch is set to 100, steps per epoch 340",
        "-- Found CUDA: /usr/local/cuda (found version 11.8)",
        "[120/340] c++ -MMD -MF build/loss.o.d -c src/loss.cpp",
    ],
)
def test_neighbours_of_these_spellings_draw_no_curve(text: str) -> None:
    sample = MetricReader().feed(text)
    found = set(sample.values) if sample is not None else set()
    assert not found & {"loss", "val_loss", "step", "epoch", "step_time_s"}
