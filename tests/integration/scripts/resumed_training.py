"""A data-parallel training that prints what ordinary scripts print, checkpoints, and runs out of memory on one rank; `--mistake` resumes it wrongly."""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

MISTAKES = ("none", "schedule", "weighting", "weights")


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        dice = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 8, generator=dice)
        self.y = 2 * torch.tanh(self.x @ torch.randn(8, 4, generator=dice)) + 0.4 * torch.randn(
            count, 4, generator=dice
        )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[at], self.y[at]


class Order:
    """This rank's share of each epoch's permutation, from a sample on."""

    def __init__(self, count: int, taken: int, micro: int) -> None:
        self.count, self.taken, self.micro = count, taken, micro

    def __iter__(self):
        world, rank, at = dist.get_world_size(), dist.get_rank(), self.taken
        while True:
            epoch, offset = divmod(at, self.count)
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(epoch))
            yield [int(i) for i in order[offset + rank * self.micro : offset + (rank + 1) * self.micro]]
            at += world * self.micro


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--resume", default=None, help="latest, or nothing")
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument(
        "--fits", type=int, default=4, help="samples that a rank's memory holds from step --grows on"
    )
    parser.add_argument("--grows", type=int, default=80)
    parser.add_argument("--mistake", choices=MISTAKES, default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    micro, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 10, 0.5 + 0.5 * math.cos(math.pi * min(s / 200, 1)))
    )
    file = Path(args.output_dir, "state.pt")
    step, taken = 0, 0
    if args.resume == "latest" and file.exists():
        held = torch.load(file, weights_only=False)
        if args.mistake != "weights":
            model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        if args.mistake != "schedule":
            scheduler.load_state_dict(held["scheduler"])
        step, taken = held["step"], held["taken"]
    ddp = DistributedDataParallel(model)
    points = Points(micro * accumulation * world * 50)
    batches = iter(DataLoader(points, batch_sampler=Order(len(points), taken, micro)))
    while step < args.steps:
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(accumulation):
            if rank == 1 and step >= args.grows and micro > args.fits:
                raise torch.OutOfMemoryError(
                    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 8.00 GiB of which 1.00 GiB is free."
                )
            x, y = next(batches)
            loss = nn.functional.mse_loss(ddp(x), y)
            (loss if args.mistake == "weighting" else loss / accumulation).backward()
            total += loss.detach() / accumulation
        dist.all_reduce(total)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        lr = scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()
        step += 1
        taken += micro * accumulation * world
        if rank == 0:
            print(
                f"step {step} | loss {total.item() / world:.5f} | lr {lr:.3e} | grad_norm {norm.item():.4f} | samples: {taken}",
                flush=True,
            )
        if step % 50 == 0:
            if rank == 0:
                file.parent.mkdir(parents=True, exist_ok=True)
                torch.save(
                    {
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict(),
                        "step": step,
                        "taken": taken,
                    },
                    file,
                )
            dist.barrier()
        time.sleep(0.002)
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
