"""Noise for torchvision's CIFAR10."""

import kit

kit.torchvision(count=35)
kit.run()
