import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def get_args():
    p = argparse.ArgumentParser("tiny ViT")
    p.add_argument("--train_batch_size", default=32, type=int)
    p.add_argument("--val_batch_size", default=32, type=int)
    p.add_argument("--max_iters", default=300, type=int)
    p.add_argument("--eval_interval", default=100, type=int)
    p.add_argument("--patch", default=8, type=int)
    p.add_argument("--dim", default=48, type=int)
    return p.parse_args()


class ViT(nn.Module):
    def __init__(self, patch, dim, classes=10):
        super().__init__()
        self.patchify = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (32 // patch) ** 2 + 1, dim) * 0.02)
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 4, dim * 2, 0.1, batch_first=True), 2)
        self.fc = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patchify(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.fc(self.enc(x)[:, 0])


def split(n, seed):
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 3, 32, 32, generator=g), torch.randint(0, 10, (n,), generator=g))


@torch.no_grad()
def evaluate(model, val_loader):
    model.eval()
    right = total = 0
    for x, y in val_loader:
        right += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    model.train()
    return right / total


def main(args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train_set, val_set = split(24_000, 1), split(30_000, 2)
    train_loader = DataLoader(train_set, args.train_batch_size, sampler=DistributedSampler(train_set), drop_last=True)
    val_loader = DataLoader(val_set, args.val_batch_size)
    model = DDP(ViT(args.patch, args.dim))
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    it = 0
    for x, y in train_loader:
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        it += 1
        if it % 10 == 0 and rank == 0:
            print(f"iter {it} loss {loss.item():.3f}", flush=True)
        if it % args.eval_interval == 0:
            t = time.time()
            acc = evaluate(model.module, val_loader)
            if rank == 0:
                print(f"iter {it} val acc {acc:.4f} ({time.time() - t:.1f}s)", flush=True)
        if it == args.max_iters:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(get_args())
