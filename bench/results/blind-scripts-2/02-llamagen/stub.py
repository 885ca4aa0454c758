"""Random codes instead of a quantised ImageNet; GPT-B is made small, and two cards are claimed."""

import os
import sys

import kit
import torch

sys.path.insert(0, os.path.abspath("."))
import dataset.build as build
from autoregressive.models import gpt


class Codes(torch.utils.data.Dataset):
    """140 rows of 256 codes and a class, as the script's own data set yields them."""

    flip, aug_feature_dir, feature_dir = False, None, "codes"

    def __getitem__(self, index):
        return torch.randint(0, 64, (1, 256)), torch.randint(0, 10, (1,))

    def __len__(self):
        return 140


build.build_imagenet_code = lambda args, **_: Codes()
gpt.GPT_models["GPT-B"] = lambda **given: gpt.Transformer(
    gpt.ModelArgs(n_layer=2, n_head=2, dim=32, multiple_of=16, **given)
)
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
kit.run(cpu=True)
