"""Plain argparse: --batch-size goes undivided to a DataLoader, --grad-accum beside it."""

import argparse

from model import train


class DataLoader:
    """Stands for torch's: what a batch size is handed to."""

    def __init__(self, data, batch_size):
        self.batch_size = batch_size


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--grad-accum", type=int, default=3)
parser.add_argument("--limit", type=int, default=13)
parser.add_argument("--tell", default="")
args = parser.parse_args()
loader = DataLoader([], batch_size=args.batch_size)
train(loader.batch_size, args.grad_accum, limit=args.limit, tell=args.tell)
