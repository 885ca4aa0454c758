"""yacs: pairs of words, a key and its value, are the rest of the command line. It goes on from its checkpoint by itself."""

import argparse
import os

from common import Points, Training
from torch.utils.data import DataLoader, DistributedSampler
from yacs.config import CfgNode

cfg = CfgNode(
    MODEL=CfgNode(HEADS=4, WIDTH=16), TRAIN=CfgNode(BATCH_SIZE=4, ACCUM_STEPS=1), TEST=CfgNode(BATCH_SIZE=64)
)
parser = argparse.ArgumentParser()
parser.add_argument("--opts", nargs="+", default=[])
cfg.merge_from_list(parser.parse_args().opts)
training = Training(heads=cfg.MODEL.HEADS, width=cfg.MODEL.WIDTH)
if os.path.exists("out/model.pt"):
    training.load("out/model.pt")
points = Points()
loader = DataLoader(points, cfg.TRAIN.BATCH_SIZE, sampler=DistributedSampler(points))
training.train(loader, cfg.TRAIN.ACCUM_STEPS, "out/model.pt")
