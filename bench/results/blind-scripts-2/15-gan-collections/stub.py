"""Noise for torchvision's CIFAR10; the two networks are made small; the metrics, which are off, are not imported."""

import os
import sys

import kit
from torch import nn

kit.torchvision(count=280)
kit.module("pytorch_gan_metrics", get_inception_score_and_fid=None)
sys.path.insert(0, os.path.abspath("."))
import source.models.wgangp as models  # noqa: E402


class Generator(nn.Sequential):
    """`z_dim` numbers to a picture of 32×32."""

    def __init__(self, z_dim):
        super().__init__(
            nn.Linear(z_dim, 1024),
            nn.Unflatten(1, (16, 8, 8)),
            nn.ConvTranspose2d(16, 8, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 3, 4, 2, 1),
            nn.Tanh(),
        )


models.Generator32 = Generator
models.Discriminator32 = lambda: nn.Sequential(
    nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(2048, 1)
)
kit.run(cpu=True)
