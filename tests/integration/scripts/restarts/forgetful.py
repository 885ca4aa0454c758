"""It saves, and never loads."""

import argparse

from common import Points, Training, forever
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--grad-accum", type=int, default=1)
args = parser.parse_args()
training = Training()
points = Points()
batches = forever(DataLoader(points, batch_size=args.batch_size, sampler=DistributedSampler(points)))
while training.goes_on:
    for _ in range(args.grad_accum):
        training.feed(*next(batches), share=1 / args.grad_accum)
    training.update()
    training.save("out/last.pt")
training.end()
