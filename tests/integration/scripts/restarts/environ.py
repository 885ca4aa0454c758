"""Variables of the environment, without any argument. It goes on from its snapshot."""

import os

import torch
from common import Points, Training
from torch.utils.data import DataLoader, DistributedSampler

BATCH = int(os.environ.get("BATCH", "32"))
ACCUM = int(os.environ.get("ACCUM", "1"))
HEADS = int(os.environ.get("HEADS", "4"))
training = Training(heads=HEADS, optimizer=torch.optim.SGD, prints=False)
if os.path.exists("out/snapshot.pt"):
    training.load("out/snapshot.pt")
points = Points()
loader = DataLoader(points, batch_size=BATCH, sampler=DistributedSampler(points))
training.train(loader, ACCUM, "out/snapshot.pt")
