"""It saves, and never loads."""

import argparse

from common import Training

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--grad-accum", type=int, default=1)
args = parser.parse_args()
training = Training()
training.train(args.batch_size, args.grad_accum, "out/last.pt")
