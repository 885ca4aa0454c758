"""Noise of 12 classes in place of mini-ImageNet's pickles, registered where the script looks it up."""

import os
import sys

import kit
import torch

sys.path.insert(0, os.path.abspath("."))
import datasets


class Pictures(torch.utils.data.Dataset):
    """20 pictures of 16×16 of each of 12 classes."""

    n_classes = 12

    def __init__(self, root_path="", split="train"):
        self.label = [i // 20 for i in range(240)]

    def __getitem__(self, index):
        return torch.rand(3, 16, 16), self.label[index]

    def __len__(self):
        return 240


datasets.datasets.datasets["mini-imagenet"] = Pictures
kit.run(cpu=True)
