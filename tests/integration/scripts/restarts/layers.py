"""Started by ``layers.sh`` and ``inner.sh``: an array and a here-string hold its options."""

import argparse

from common import Points, Training, forever
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--mbs", type=int, default=1)
parser.add_argument("--ga", type=int, default=1)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--output-dir", default="out")
parser.add_argument("--resume-from", default=None)
args = parser.parse_args()
training = Training(heads=args.heads)
if args.resume_from:
    training.load(args.resume_from)
points = Points()
batches = forever(DataLoader(points, batch_size=args.mbs, sampler=DistributedSampler(points)))
while training.goes_on:
    for _ in range(args.ga):
        training.feed(*next(batches), share=1 / args.ga)
    training.update()
    training.save(f"{args.output_dir}/model.pt")
training.end()
