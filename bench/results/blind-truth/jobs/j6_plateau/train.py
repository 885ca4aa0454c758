"""Stops on a plateau, in words of its own, long before the step total that each line prints."""

import time

best, best_at, total = 9.9, 0, 400
for step in range(1, total + 1):
    time.sleep(0.05)
    loss = max(1.5, 3.0 - 0.04 * step)
    print(f"step {step:4d}/{total}  loss {loss:.3f}", flush=True)
    if step % 10 == 0:
        val = loss + 0.1
        print(f"    dev loss {val:.3f} (best {min(best, val):.3f})", flush=True)
        if val < best - 1e-3:
            best, best_at = val, step
        elif step - best_at >= 30:
            print(
                f"Patience exhausted at step {step}: no better dev loss since step {best_at}, stopping here.",
                flush=True,
            )
            print(f"Keeping the weights of step {best_at} (dev loss {best:.3f})", flush=True)
            break
