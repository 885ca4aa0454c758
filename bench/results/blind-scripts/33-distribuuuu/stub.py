"""Noise for torchvision's ImageFolder. The script divides by the number of cards, so two are claimed."""

import kit
import torch

torch.cuda.device_count = lambda: 2
kit.torchvision(count=64, side=40)
kit.run(cpu=True)
