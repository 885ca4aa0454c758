"""Noise for torchvision's MNIST; wandb, which is off, is not imported."""

import kit

kit.torchvision(count=180)
kit.module("wandb")
kit.run()
