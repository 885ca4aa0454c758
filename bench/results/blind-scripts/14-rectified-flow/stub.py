"""Noise for torchvision's MNIST; wandb is not installed and gets a silent stand-in; the model is made thinner."""

import os
import sys

import kit

sys.path.insert(0, os.path.abspath("."))
os.makedirs("contents", exist_ok=True)
kit.module("wandb", init=lambda **_: None, log=lambda _: None)
kit.torchvision(count=1100)
import dit  # noqa: E402

Init = dit.DiT_Llama.__init__
dit.DiT_Llama.__init__ = lambda self, channels, side, **given: Init(
    self, channels, side, **{**given, "dim": 64, "n_layers": 1, "n_heads": 2}
)
kit.run(cpu=True)
