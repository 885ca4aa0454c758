"""Noise for torchvision's CIFAR10."""

import kit

kit.torchvision(count=192)
kit.run(cpu=True)
