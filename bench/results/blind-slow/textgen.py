"""Character-level language model on noisy text. torchrun --nproc-per-node 2 textgen.py"""
import argparse
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--block-size", type=int, default=64)
parser.add_argument("--n-layer", type=int, default=2)
parser.add_argument("--n-embd", type=int, default=64)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--log-every", type=int, default=10)
args = parser.parse_args()

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,;"


class NoisyText(Dataset):
    """Random sentences; each sample is spelled wrongly in its own way, and the nearest of some candidates is kept."""

    def __init__(self, n, block):
        self.n, self.block = n, block

    def __len__(self):
        return self.n

    @staticmethod
    def distance(a, b):
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, 1):
            last, row[0] = row[0], i
            for j, y in enumerate(b, 1):
                last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
        return row[-1]

    def __getitem__(self, i):
        r = random.Random(i)
        clean = "".join(r.choice(ALPHABET) for _ in range(self.block + 1))
        candidates = []
        for _ in range(6):
            noisy = "".join(r.choice(ALPHABET) if r.random() < 0.1 else c for c in clean)
            candidates.append((self.distance(clean, noisy), noisy))
        text = min(candidates)[1]
        ids = torch.tensor([ALPHABET.index(c) for c in text])
        return ids[:-1], ids[1:]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, mask):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, d, layers, block):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.zeros(block, d))
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))
        self.head = nn.Linear(d, vocab)
        self.register_buffer("mask", torch.triu(torch.full((block, block), float("-inf")), 1))

    def forward(self, idx):
        x = self.tok(idx) + self.pos
        for b in self.blocks:
            x = b(x, self.mask)
        return self.head(x)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1337)
    data = NoisyText(100_000, args.block_size)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    model = DDP(GPT(len(ALPHABET), args.n_embd, args.n_layer, args.block_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    t0 = time.time()
    for step, (x, y) in enumerate(loader, 1):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % args.log_every == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}, {(time.time() - t0) / args.log_every * 1000:.1f} ms/step", flush=True)
            t0 = time.time()
        if step == args.steps:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
