"""What its configuration says is used, whatever the options say. It goes on from its own file."""

import argparse
import json
import os
from pathlib import Path

from common import Points, Training, forever
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--grad_accum", type=int, default=1)
parser.add_argument("--config", type=Path, default=None)
args = parser.parse_args()
for name, value in json.loads(args.config.read_text(encoding="utf-8")).items():
    setattr(args, name, value)
training = Training()
if os.path.exists("out/last.pt"):
    training.load("out/last.pt")
points = Points()
batches = forever(DataLoader(points, batch_size=args.batch_size, sampler=DistributedSampler(points)))
while training.goes_on:
    for _ in range(args.grad_accum):
        training.feed(*next(batches), share=1 / args.grad_accum)
    training.update()
    training.save("out/last.pt")
training.end()
