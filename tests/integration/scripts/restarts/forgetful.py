"""It saves, and never loads."""

import argparse

from common import Points, Training
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--grad-accum", type=int, default=1)
args = parser.parse_args()
training = Training()
points = Points()
loader = DataLoader(points, batch_size=args.batch_size, sampler=DistributedSampler(points))
training.train(loader, args.grad_accum, "out/last.pt")
