"""Healthy: an evaluation between the steps takes 9 s, 30 times a step, and talks in prose meanwhile."""

import time

STORIES = (
    "The ferry had left without them, so the two sisters walked along the quay",
    "and counted the lamps until the fog swallowed the last of them.",
    "Nobody in the village remembered who had built the second bridge.",
    "Q: What melts first? A: the snow on the southern roof, says the model.",
    "A recipe for bread without yeast begins, somewhat oddly, with a letter.",
    "He wrote that the harbour froze early that year and the boats stayed in.",
)


def evaluate(step):
    print(f"Running evaluation at step {step}: writing 12 sample continuations", flush=True)
    for n in range(12):
        time.sleep(0.75)
        print("  " + STORIES[(n + step) % len(STORIES)], flush=True)
    print(f"evaluation at step {step}: eval_loss {2.9 - step * 0.005:.3f}", flush=True)


for step in range(1, 41):
    time.sleep(0.3)
    print(f"step {step}/40 loss {3 - step * 0.01:.3f}", flush=True)
    if step == 20:
        evaluate(step)
