"""Two batch flags of one value: training takes --mini_batch_size, and the helper's argument has the other's name. It loads its newest by itself."""

import argparse
import os

import torch
from common import Points, Training, forever
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
parser.add_argument("--mini_batch_size", type=int, default=2)
parser.add_argument("--grad_accum", type=int, default=1)
parser.add_argument("--fails_at", type=int, default=6)
args = parser.parse_args()


def make(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, sampler=DistributedSampler(dataset))


training = Training(limit=4, fails_at=args.fails_at)
prototypes = torch.zeros(args.batch_size, 16).mean(0)
if "model.pt" in os.listdir("out"):
    training.load("out/model.pt")
batches = forever(make(Points(), args.mini_batch_size))
while training.goes_on:
    for _ in range(args.grad_accum):
        x, y = next(batches)
        training.feed(x - prototypes, y, share=1 / args.grad_accum)
    training.update()
    training.save("out/model.pt")
training.end()
