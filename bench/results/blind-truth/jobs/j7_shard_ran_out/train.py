"""60 steps are wanted, but the iterator over the shards is empty after 22: the loop just falls through."""

import time


def batches():
    for shard in ("part-000", "part-001"):  # 11 batches each; the list should name six
        for n in range(11):
            yield f"{shard}:{n}"


TOTAL = 60
print(f"training for {TOTAL} steps", flush=True)
for step, _ in zip(range(1, TOTAL + 1), batches(), strict=False):
    time.sleep(0.12)
    print(f"step {step}/{TOTAL} loss {5 - step * 0.05:.3f} tok/s 10240", flush=True)
