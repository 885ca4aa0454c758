"""The batch is that of all ranks; each takes its share. It goes on from the newest file of its folder."""

import argparse
from pathlib import Path

from common import Points, Training, forever
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=64)
parser.add_argument("--accum-iter", type=int, default=1)
parser.add_argument("--output-dir", default="out")
args = parser.parse_args()
training = Training()
saved = sorted(Path(args.output_dir).glob("step*.pt"))
if saved:
    training.load(saved[-1])
points = Points()
loader = DataLoader(points, batch_size=args.batch_size // training.world, sampler=DistributedSampler(points))
batches = forever(loader)
while training.goes_on:
    for _ in range(args.accum_iter):
        training.feed(*next(batches), share=1 / args.accum_iter)
    training.update()
    training.save(f"{args.output_dir}/step{training.step:04d}.pt")
training.end()
