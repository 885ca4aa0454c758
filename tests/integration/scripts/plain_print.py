"""Prints as most scripts of one's own do, on every rank."""

from frameworks import Training

training = Training()
print(f"rank {training.rank}: training for {training.steps} steps")
for step in training.run():
    print(f"step {step.number} loss {step.loss:.4f} lr {step.lr:.2e}", flush=True)
