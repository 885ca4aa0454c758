"""Started by ``layers.sh`` and ``inner.sh``: an array and a here-string hold its options."""

import argparse

from common import Points, Training
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
loader = DataLoader(points, batch_size=args.mbs, sampler=DistributedSampler(points))
training.train(loader, args.ga, f"{args.output_dir}/model.pt")
