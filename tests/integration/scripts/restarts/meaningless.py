"""Names that say nothing: zeta is a rank's batch, rho the passes of a step. It goes on from its own file."""

import argparse
import os

from common import Training

parser = argparse.ArgumentParser()
parser.add_argument("--zeta", type=int, default=4)
parser.add_argument("--rho", type=int, default=1)
parser.add_argument("--eta", type=int, default=16)
args = parser.parse_args()
training = Training(width=args.eta, prints=False)
if os.path.exists("out/last.pt"):
    training.load("out/last.pt")
training.train(args.zeta, args.rho, "out/last.pt")
