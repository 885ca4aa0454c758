"""A training on two ranks whose steps lose time to one planted cause, named on the command line."""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--cause", default="none")
parser.add_argument("--num_workers", type=int, default=0)
parser.add_argument("--seconds", type=float, default=14.0)
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)


class Samples(Dataset):
    """Samples that may come from a slow disk."""

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if args.cause == "slow_loader" or (args.cause == "slow_disk" and rank == 1):
            time.sleep(0.004)
        return torch.full((256,), float(index % 7))


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    if args.cause == "collate":
        time.sleep(0.03)
    return torch.stack(samples)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            *[torch.nn.Linear(256, 256) for _ in range(6)], torch.nn.Linear(256, 1)
        )
        self.compiled = False

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if args.cause == "compile" and not self.compiled:
            time.sleep(3.0)
            self.compiled = True
        passes = 6 if args.cause == "slow_rank" and rank == 1 else 1
        for _ in range(passes):
            out = self.layers(batch)
            time.sleep(0.008)
        return out


data = Samples()
loader = DataLoader(
    data, batch_size=8, sampler=DistributedSampler(data), num_workers=args.num_workers, collate_fn=collate
)
held_out = DataLoader(Samples(), batch_size=8)
model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
kept: list[float] = []
began = time.monotonic()
for step, batch in enumerate(loader, start=1):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if args.cause == "growing":
        kept += [float(step)] * 20_000
        sum(kept)
    if args.cause == "item":
        for _ in range(20):
            loss.item()
    if args.cause == "saves" and step % 20 == 0:
        if rank == 0:
            torch.save({"model": model.state_dict(), "filler": torch.zeros(30_000_000)}, "last.pt")
            time.sleep(0.0)
        dist.barrier()
    if args.cause == "evaluation" and step % 40 == 0:
        model.eval()
        with torch.no_grad():
            for place, other in enumerate(held_out):
                model(other)
                if place == 60:
                    break
        model.train()
    over = torch.tensor(float(time.monotonic() - began > args.seconds))
    if step % 10 == 0:
        dist.all_reduce(over)
        if rank == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
        if over > 0:
            break
dist.destroy_process_group()
sys.exit(0)
