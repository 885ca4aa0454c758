"""Noise for Omniglot: 40 characters of 20 drawings each, in the module that the script imports."""

import os
import sys

import kit
import torch

sys.path.insert(0, os.path.abspath("src"))
import omniglot_dataset


class OmniglotDataset(torch.utils.data.Dataset):
    """20 pictures of 28×28 of each of 40 classes."""

    def __init__(self, mode="train", root=""):
        self.y = [i // 20 for i in range(800)]
        self.x = torch.rand(800, 1, 28, 28)

    def __getitem__(self, index):
        return self.x[index], self.y[index]

    def __len__(self):
        return 800


omniglot_dataset.OmniglotDataset = OmniglotDataset
kit.run()
