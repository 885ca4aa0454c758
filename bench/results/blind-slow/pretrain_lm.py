#!/usr/bin/env python
"""Tiny encoder with masked tokens. A checkpoint every 50 steps, with the memory bank that the loss uses."""
import gzip
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, LENGTH = 1000, 64, 48
BATCH_SIZE = 12
TOTAL_STEPS = 200
SAVE_EVERY = 50
BANK_ROWS = 300_000  # x 64 floats


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.decode = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        return self.decode(self.layers(self.embed(tokens) + self.position))


def batches(rank):
    g = torch.Generator().manual_seed(100 + rank)
    while True:
        target = torch.randint(1, VOCAB, (BATCH_SIZE, LENGTH), generator=g)
        hidden = torch.rand(target.shape, generator=g) < 0.15
        yield target.masked_fill(hidden, 0), target.masked_fill(~hidden, -100)


def save_checkpoint(folder, step, model, optimizer, bank):
    path = os.path.join(folder, f"checkpoint-{step}.pt.gz")
    state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "bank": bank}
    with open(path + ".tmp", "wb") as f:
        with gzip.GzipFile(fileobj=f, mode="wb", compresslevel=1) as packed:  # the quota of /home is small
            torch.save(state, packed)
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + ".tmp", path)
    for old in os.listdir(folder):
        if old != os.path.basename(path):
            os.remove(os.path.join(folder, old))
    print(f"saved {path}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(Encoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    bank = torch.randn(BANK_ROWS, WIDTH) if rank == 0 else None
    folder = tempfile.mkdtemp(prefix="lm-") if rank == 0 else None
    data = batches(rank)
    for step in range(1, TOTAL_STEPS + 1):
        tokens, target = next(data)
        loss = F.cross_entropy(model(tokens).view(-1, VOCAB), target.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print({"step": step, "loss": round(loss.item(), 4)}, flush=True)
        if step % SAVE_EVERY == 0:
            if rank == 0:
                save_checkpoint(folder, step, model, optimizer, bank)
            dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
