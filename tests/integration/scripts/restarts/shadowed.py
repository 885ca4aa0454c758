"""What its configuration says is used, whatever the options say. It goes on from its own file."""

import argparse
import json
import os
from pathlib import Path

from common import Points, Training
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
loader = DataLoader(points, batch_size=args.batch_size, sampler=DistributedSampler(points))
training.train(loader, args.grad_accum, "out/last.pt")
