"""Noise for torchvision's CIFAR100."""

import kit

kit.torchvision(count=24)
kit.run(cpu=True)
