"""Names that say nothing: zeta is a rank's batch, rho the passes of a step. It goes on from its own file."""

import argparse
import os

from common import Points, Training
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--zeta", type=int, default=4)
parser.add_argument("--rho", type=int, default=1)
parser.add_argument("--eta", type=int, default=16)
args = parser.parse_args()
training = Training(width=args.eta, prints=False)
if os.path.exists("out/last.pt"):
    training.load("out/last.pt")
points = Points()
loader = DataLoader(points, batch_size=args.zeta, sampler=DistributedSampler(points))
training.train(loader, args.rho, "out/last.pt")
