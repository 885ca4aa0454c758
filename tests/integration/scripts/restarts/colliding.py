"""The batch is as large as the heads and the width, and there are as many passes as workers. A flag takes the checkpoint's path."""

import argparse

from common import Points, Training, forever
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1)
parser.add_argument("--heads", type=int, default=2)
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--grad-accum", type=int, default=1)
parser.add_argument("--resume", default="")
args = parser.parse_args()
training = Training(limit=2, heads=args.heads, width=args.width)
if args.resume:
    training.load(args.resume)
points = Points()
loader = DataLoader(points, args.batch_size, sampler=DistributedSampler(points), num_workers=args.workers)
batches = forever(loader)
while training.goes_on:
    for _ in range(args.grad_accum):
        training.feed(*next(batches), share=1 / args.grad_accum)
    training.update()
    training.save("out/model.pt")
training.end()
