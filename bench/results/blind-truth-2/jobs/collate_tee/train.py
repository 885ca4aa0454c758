import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Windows(Dataset):
    """Windows of a long series; the last file of the third day is one sample short."""

    def __init__(self, n=480, length=32):
        g = torch.Generator().manual_seed(0)
        self.x = [torch.randn(length, generator=g) for _ in range(n)]
        self.x[117] = self.x[117][:-1]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i].mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--lr", type=float, default=1e-2)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Windows()
    loader = DataLoader(data, batch_size=args.batch_size, sampler=DistributedSampler(data, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if rank == 0:
        print(f"world size {dist.get_world_size()}, {len(data)} windows, {len(loader)} batches", flush=True)
    step = 0
    while step < args.steps:
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if rank == 0:
                print(f"step {step:3d}/{args.steps} | loss {loss.item():.4f} | lr {args.lr:.1e}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
        print("done, model.pt written", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
