"""Pretraining on a stream of shards. Two of the shards were never copied here."""

import argparse
import glob
import os
import time


def batches(folder, per_shard=35):
    for path in sorted(glob.glob(os.path.join(folder, "*.txt"))):
        with open(path) as f:
            f.read()
        for _ in range(per_shard):
            yield path


p = argparse.ArgumentParser()
p.add_argument("--max_steps", type=int, default=400)
p.add_argument("--data", default="shards")
args = p.parse_args()

stream = batches(args.data)
print(f"pretraining for {args.max_steps} steps", flush=True)
loss = 9.2
for step, _ in zip(range(1, args.max_steps + 1), stream, strict=False):
    time.sleep(0.05)
    loss = loss * 0.985 + 0.03
    if step % 5 == 0:
        print(f"step {step}/{args.max_steps} | loss {loss:.3f} | lr 3.00e-04 | 11.2k tok/s", flush=True)
os.makedirs("out", exist_ok=True)
with open("out/last.bin", "w") as f:
    f.write("weights")
print("saved weights to out/last.bin", flush=True)
