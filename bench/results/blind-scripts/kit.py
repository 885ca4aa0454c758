"""Common to the stubs: run a script as `python SCRIPT ARGS` would, with torchvision's datasets made of noise.

Parser, loader class and loop of the script are not touched. `run(cpu=True)` goes through run_on_cpu.py (CUDA-only scripts).
"""

import os
import runpy
import sys
import types

import numpy
import torch
from PIL import Image


class Noise(torch.utils.data.Dataset):
    """`count` random RGB pictures with labels, behind the attributes that torchvision's data sets have."""

    count, side, classes_n, gray = 256, 32, 10, False

    def __init__(self, *args, transform=None, target_transform=None, **kwargs):
        shape = (self.count, self.side, self.side) if self.gray else (self.count, self.side, self.side, 3)
        self.data = numpy.random.RandomState(0).randint(0, 256, shape).astype("uint8")
        self.targets = [i % self.classes_n for i in range(self.count)]
        self.classes = [str(i) for i in range(self.classes_n)]
        self.transform, self.target_transform = transform, target_transform

    def __getitem__(self, index):
        picture, label = Image.fromarray(self.data[index]), self.targets[index]
        picture = self.transform(picture) if self.transform else picture
        return picture, self.target_transform(label) if self.target_transform else label

    def __len__(self):
        return self.count


def torchvision(count=256, side=32):
    """Make CIFAR, MNIST, SVHN, STL10 and ImageFolder of torchvision yield noise."""
    import torchvision.datasets as datasets

    for name, kind in {
        "CIFAR10": {},
        "CIFAR100": {"classes_n": 100},
        "SVHN": {},
        "STL10": {"side": 96},
        "MNIST": {"side": 28, "gray": True},
        "FashionMNIST": {"side": 28, "gray": True},
        "ImageFolder": {"side": side},
    }.items():
        setattr(datasets, name, type(name, (Noise,), {"count": count, "__module__": __name__, **kind}))
        globals()[name] = getattr(datasets, name)


def module(name, **content):
    """Stand in for an imported module that only reads data (an environment, a decoder of audio)."""
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(content)
    return sys.modules[name]


def run(cpu=False):
    """Run argv[1] as the main program."""
    here = os.path.dirname(os.path.abspath(__file__))
    if cpu:
        runpy.run_path(os.path.join(here, "run_on_cpu.py"), run_name="__main__")
        return
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    sys.path.append(here)
    runpy.run_path(sys.argv[0], run_name="__main__")
