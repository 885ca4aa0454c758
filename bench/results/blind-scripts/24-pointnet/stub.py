"""Point clouds of noise in place of ShapeNet's files."""

import os
import sys

import kit
import torch

kit.module("plyfile", PlyData=None, PlyElement=None)
sys.path.insert(0, os.path.abspath("."))
from pointnet import dataset  # noqa: E402


class Clouds(torch.utils.data.Dataset):
    """90 clouds of `npoints` points."""

    classes = dict.fromkeys("abcd")

    def __init__(self, root, npoints=2500, **given):
        self.points = npoints

    def __getitem__(self, index):
        return torch.randn(self.points, 3), torch.tensor([index % 4])

    def __len__(self):
        return 90


dataset.ShapeNetDataset = Clouds
kit.run(cpu=True)
