"""Noise in CIFAR-10's own files; a card is claimed, and torch's old way of loading."""

import os
import pickle
import sys

import kit
import numpy
import torch

sys.path.insert(0, os.path.abspath("."))
folder = "pycls/datasets/data/cifar10"
os.makedirs(folder, exist_ok=True)
for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
    data = numpy.random.RandomState(0).randint(0, 256, (40, 3072)).astype("uint8")
    with open(f"{folder}/{name}", "wb") as f:
        pickle.dump({b"data": data, b"labels": [i % 10 for i in range(40)]}, f)
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
torch.cuda.current_device = lambda: 0
kit.run(cpu=True)
