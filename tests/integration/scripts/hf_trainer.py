"""Prints as transformers.Trainer does: one bar on stderr, a dict on stdout every five steps, a summary at the end.

Every twenty steps an evaluation draws a second bar below the first.
"""

import time

from frameworks import Bar, Training

LOG_EVERY = 5
EVAL_EVERY = 20
EVAL_BATCHES = 6

training = Training()
bar = Bar(training.steps) if training.rank == 0 else None
losses: list[float] = []
every: list[float] = []
for step in training.run():
    losses.append(step.loss)
    every.append(step.loss)
    if bar is None:
        continue
    bar.update()
    if step.number % LOG_EVERY == 0:
        logs = {
            "loss": round(sum(losses) / len(losses), 4),
            "grad_norm": step.grad_norm,
            "learning_rate": step.lr,
            "epoch": round(step.number / training.steps, 2),
        }
        losses.clear()
        bar.write(str(logs))
    if step.number % EVAL_EVERY == 0:
        second = Bar(EVAL_BATCHES, nested=True)
        for _ in range(EVAL_BATCHES):
            time.sleep(training.step_time)
            second.update()
        evaluated = {
            "eval_loss": step.loss + 1.0,
            "eval_runtime": 0.1204,
            "eval_samples_per_second": 1661.13,
            "eval_steps_per_second": 49.83,
            "epoch": round(step.number / training.steps, 2),
        }
        bar.write(str(evaluated), below=second)
        second.wipe()
if bar is not None:
    summary = {
        "train_runtime": 2.0512,
        "train_samples_per_second": 1248.02,
        "train_steps_per_second": 19.501,
        "train_loss": sum(every) / len(every),
        "epoch": 1.0,
    }
    bar.write(str(summary))
    bar.close()
