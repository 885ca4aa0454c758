"""Noise for torchvision's CIFAR100."""

import kit

kit.torchvision(count=90)
kit.run(cpu=True)
