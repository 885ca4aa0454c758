"""The batch is written here, and nowhere else. It goes on from its own file."""

import argparse
import os

from common import Points, Training, forever
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--heads", type=int, default=4)
args = parser.parse_args()
training = Training(heads=args.heads)
if os.path.exists("out/last.pt"):
    training.load("out/last.pt")
points = Points()
batches = forever(DataLoader(points, batch_size=16, sampler=DistributedSampler(points)))
while training.goes_on:
    training.feed(*next(batches))
    training.update()
    training.save("out/last.pt")
training.end()
