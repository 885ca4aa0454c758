"""Prints a tqdm bar with set_postfix on every rank, and nothing else."""

from frameworks import Bar, Training

training = Training()
bar = Bar(training.steps, prefix="train")
for step in training.run():
    bar.update(f"loss={step.loss:.3f}, lr={step.lr:.3g}")
bar.close()
