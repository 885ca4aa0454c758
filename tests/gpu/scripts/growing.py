"""A stranger's training: argparse, accumulation, checkpoints, --resume PATH; from step --long-from on its samples need more memory.

Nothing in it is stoker's. A sample then costs 1/40 of the card, so that 96 samples at once do not fit and 24 do.
"""

import argparse
import os

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=96)
parser.add_argument("--grad-accum-steps", type=int, default=1)
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--long-from", type=int, default=12)
parser.add_argument("--out", default="out")
parser.add_argument("--resume", default="", metavar="PATH")
args = parser.parse_args()

device = torch.device("cuda", 0)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
start = 0
if args.resume:
    state = torch.load(args.resume, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
    print(f"resumed from {args.resume} at step {start}", flush=True)
os.makedirs(args.out, exist_ok=True)

row_bytes = 1024 * 4 * 13  # of one row: the input, eight layers, the difference and its square, two gradients
long_rows = torch.cuda.get_device_properties(device).total_memory // 40 // row_bytes
for step in range(start + 1, args.steps + 1):
    rows = long_rows if step >= args.long_from else 256
    total = 0.0
    for _ in range(args.grad_accum_steps):
        x = torch.randn(args.batch_size * rows, 1024, device=device)
        loss = (model(x) - x).square().mean() / args.grad_accum_steps
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step}/{args.steps} loss {total:.4f}", flush=True)
    if step % 5 == 0:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
            os.path.join(args.out, f"ckpt_{step}.pt"),
        )
