"""A checkpoint goes to a slow network folder: nothing is printed for ten seconds, at a quarter of a second a step."""

import os
import time

TOTAL = 40


def save(step):
    folder = f"out/checkpoint-{step}"
    print(f"Saving model checkpoint to {folder}", flush=True)
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/pytorch_model.bin", "wb") as f:
        for _ in range(20):
            f.write(os.urandom(1 << 18))
            f.flush()
            time.sleep(0.5)
    print(f"Model weights saved in {folder}/pytorch_model.bin", flush=True)


for step in range(1, TOTAL + 1):
    time.sleep(0.25)
    print(
        {
            "loss": round(2.3 / step**0.2, 4),
            "learning_rate": 5e-05,
            "epoch": round(step / 20, 2),
            "step": step,
        },
        flush=True,
    )
    if step == 25:
        save(step)
print({"train_runtime": 20.0, "train_samples_per_second": 16.0, "train_loss": 1.31, "epoch": 2.0}, flush=True)
