import argparse
import time

p = argparse.ArgumentParser()
p.add_argument("--epochs", type=int, default=5)
p.add_argument("--out", default="out")
p.add_argument("--lr", type=float, default=1e-3)
p.add_argument("--warmup-epochs", type=int, default=0)
args = p.parse_args()

for epoch in range(1, args.epochs + 1):
    time.sleep(0.5)
    print(
        f"Epoch {epoch}/{args.epochs} - train_loss: {1 / epoch:.4f} - val_loss: {1.1 / epoch:.4f}", flush=True
    )
