"""The passes of a step follow from a total."""

import argparse

from common import Points, Training, forever
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--device-batch-size", type=int, default=4)
parser.add_argument("--total-batch-size", type=int, default=16)
parser.add_argument("--resume", default=None)
args = parser.parse_args()
training = Training()
if args.resume is not None:
    training.load(args.resume)
passes, rest = divmod(args.total_batch_size, args.device_batch_size * training.world)
assert not rest
points = Points()
batches = forever(DataLoader(points, args.device_batch_size, sampler=DistributedSampler(points)))
while training.goes_on:
    for _ in range(passes):
        training.feed(*next(batches), share=1 / passes)
    training.update()
    training.save("out/model.pt")
training.end()
