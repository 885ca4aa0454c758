import argparse

p = argparse.ArgumentParser(prog="train_lora.py")
p.add_argument("--rank-dim", type=int, default=8)
p.add_argument("--output", required=True)
p.add_argument("--steps", type=int, default=20)
p.parse_args()
for i in range(20):
    print(f"step {i + 1}/20 loss {2 - i * 0.01:.3f}", flush=True)
