"""Noise for torchvision's CIFAR10."""

import kit

kit.torchvision(count=96)
kit.run(cpu=True)
