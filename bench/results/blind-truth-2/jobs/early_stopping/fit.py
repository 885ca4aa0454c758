"""Prints what a Lightning project prints when early stopping ends the training."""

import atexit
import sys
import time

MAX_EPOCHS = 50
VAL = [0.912, 0.701, 0.588, 0.531, 0.519, 0.524, 0.522, 0.530]


def close_writer():
    raise RuntimeError("cannot schedule new futures after shutdown")


atexit.register(close_writer)
sys.stderr.write(
    "GPU available: False, used: False\nTPU available: False, using: 0 TPU cores\n"
    "\n  | Name  | Type       | Params\n-------------------------------------\n"
    "0 | model | Sequential | 50.4 K\n-------------------------------------\n"
    "50.4 K    Trainable params\n0         Non-trainable params\n"
)
print(f"max_epochs={MAX_EPOCHS}, patience=3, monitor=val_loss", flush=True)
best = float("inf")
for epoch, val in enumerate(VAL):
    for batch in range(1, 21):
        time.sleep(0.02)
        train = val * 0.9 + (20 - batch) * 0.003
        sys.stdout.write(
            f"\rEpoch {epoch}: {batch * 5:3d}%|{'█' * (batch // 2):<10}| {batch}/20 [00:00<00:00, 48.71it/s, v_num=3, "
            f"train_loss={train:.3f}, val_loss={VAL[max(epoch - 1, 0)]:.3f}]"
        )
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if val < best:
        word = "improved." if best == float("inf") else f"improved by {best - val:.3f} >= min_delta = 0.0."
        sys.stderr.write(f"Metric val_loss {word} New best score: {val:.3f}\n")
        best = val
sys.stderr.write(
    f"Monitored metric val_loss did not improve in the last 3 records. Best score: {best:.3f}. Signaling Trainer to stop.\n"
)
sys.stderr.flush()
time.sleep(0.3)
print(
    "Restoring states from the checkpoint path at lightning_logs/version_3/checkpoints/epoch=4-step=100.ckpt"
)
print("┏━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━┓")
print("┃        Test metric        ┃       DataLoader 0        ┃")
print("┡━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━┩")
print("│         test_acc          │    0.8421000242233276     │")
print("│         test_loss         │    0.5270000100135803     │")
print("└───────────────────────────┴───────────────────────────┘", flush=True)
