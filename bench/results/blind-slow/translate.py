"""A small encoder-decoder that learns to reverse sequences; gradients are accumulated over four micro-batches."""
import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Reverse(Dataset):
    def __len__(self):
        return 50_000

    def __getitem__(self, i):
        src = torch.randint(2, 200, (24,), generator=torch.Generator().manual_seed(i))
        return src, src.flip(0)


class Seq2Seq(nn.Module):
    def __init__(self, vocab=200, d=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.tf = nn.Transformer(d, 4, 1, 1, 96, 0.0, batch_first=True)
        self.out = nn.Linear(d, vocab)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        return self.out(self.tf(self.emb(src), self.emb(tgt), tgt_mask=mask))


def main(config):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ds = Reverse()
    loader = DataLoader(ds, batch_size=config.micro_batch_size, sampler=DistributedSampler(ds, world, rank))
    model = DDP(Seq2Seq())
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    criterion = nn.CrossEntropyLoss()
    it = iter(loader)
    began = time.time()
    for step in range(1, config.num_steps + 1):
        total = 0.0
        for micro in range(config.gradient_accumulation_steps):
            src, tgt = next(it)
            last = micro == config.gradient_accumulation_steps - 1
            with contextlib.nullcontext() if last else model.no_sync():
                logits = model(src, tgt.roll(1, 1))
                loss = criterion(logits.transpose(1, 2), tgt) / config.gradient_accumulation_steps
                loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0 and rank == 0:
            print(f"{step:>5d}  loss={total:.4f}  {step / (time.time() - began):.2f} it/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--micro-batch-size", type=int, default=12)
    ap.add_argument("--gradient-accumulation-steps", type=int, default=4)
    ap.add_argument("--num-steps", type=int, default=250)
    ap.add_argument("--learning-rate", type=float, default=1e-3)
    main(ap.parse_args())
