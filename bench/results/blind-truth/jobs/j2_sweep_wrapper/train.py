import argparse
import time

p = argparse.ArgumentParser()
p.add_argument("--lr", type=float)
p.add_argument("--max-steps", type=int, default=60)
a = p.parse_args()

BATCHES = [{"input_ids": [1, 2], "labels": [2, 3]} for _ in range(a.max_steps)]
del BATCHES[31]["labels"]  # one broken record


def loss_of(batch):
    return sum(batch["labels"]) / 2


def fit():
    for i, batch in enumerate(BATCHES, start=1):
        time.sleep(0.08)
        print(f"iter {i}/{a.max_steps} loss={loss_of(batch) * 0.99**i:.4f} lr={a.lr}", flush=True)


fit()
