"""MLP for tabular data, with a small live-metrics thread on the first rank."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Config:
    features: int = 128
    hidden: int = 512
    batch_size: int = 128
    max_steps: int = 140
    lr: float = 3e-4
    log_interval: int = 10


class Metrics(threading.Thread):
    """Keeps a rolling histogram of the losses up to date."""

    def __init__(self):
        super().__init__(daemon=True)
        self.values: list[float] = [0.0]
        self.bins = [0] * 64
        self.stopped = False

    def run(self):
        while not self.stopped:  # no wait between two rounds
            bins = [0] * 64
            for v in self.values[-1000:]:
                bins[min(63, int(v * 8))] += 1
            self.bins = bins


class Net(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        layers: list[nn.Module] = []
        width = cfg.features
        for _ in range(4):
            layers += [nn.Linear(width, cfg.hidden), nn.LayerNorm(cfg.hidden), nn.SiLU(), nn.Dropout(0.1)]
            width = cfg.hidden
        self.body, self.out = nn.Sequential(*layers), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x)).squeeze(-1)


def train(cfg: Config) -> None:
    rank = int(os.environ["LOCAL_RANK"])
    metrics = Metrics()
    if rank == 0:
        metrics.start()
    g = torch.Generator().manual_seed(7)
    x = torch.randn(40_000, cfg.features, generator=g)
    y = x[:, :8].sum(1).tanh() + 0.1 * torch.randn(40_000, generator=g)
    data = TensorDataset(x, y)
    loader = DataLoader(data, cfg.batch_size, sampler=DistributedSampler(data), drop_last=True)
    model = DDP(Net(cfg))
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for step, (a, b) in enumerate(loader):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        opt.step()
        metrics.values.append(float(loss.detach()))
        if rank == 0 and (step + 1) % cfg.log_interval == 0:
            print(f"[{step + 1}/{cfg.max_steps}] mse={metrics.values[-1]:.5f}", flush=True)
        if step + 1 >= cfg.max_steps:
            break
    metrics.stopped = True


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(backend="gloo")
    train(Config())
    dist.barrier()
    dist.destroy_process_group()
