import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Hyper:
    batch_size = 48
    steps = 400
    lr = 0.02
    momentum = 0.9
    width = 12


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.na, self.nb = nn.GroupNorm(4, c), nn.GroupNorm(4, c)

    def forward(self, x):
        return torch.relu(x + self.nb(self.b(torch.relu(self.na(self.a(x))))))


class ConvNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.stem = nn.Conv2d(1, w, 3, 2, 1)
        self.body = nn.Sequential(Residual(w), nn.Conv2d(w, 2 * w, 3, 2, 1), nn.ReLU(), Residual(2 * w))
        self.head = nn.Linear(2 * w, 10)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def digits(n=40_000):
    g = torch.Generator().manual_seed(5)
    x = torch.rand(n, 1, 28, 28, generator=g)
    return TensorDataset(x, (x.mean((1, 2, 3)) * 1000).long() % 10)


def train():
    dist.init_process_group("gloo")
    master = dist.get_rank() == 0
    torch.manual_seed(42)
    ds = digits()
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=Hyper.batch_size, sampler=sampler, num_workers=1, persistent_workers=True)
    model = DDP(ConvNet(Hyper.width))
    opt = torch.optim.SGD(model.parameters(), lr=Hyper.lr, momentum=Hyper.momentum)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, Hyper.steps)
    step, epoch = 0, 0
    while step < Hyper.steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            if master and step % 10 == 0:
                print(f"Step: {step} | Loss: {loss.item():.4f} | LR: {sched.get_last_lr()[0]:.4f}", flush=True)
            if step >= Hyper.steps:
                break
        epoch += 1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    train()
