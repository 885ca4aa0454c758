"""Noise for torchvision's CIFAR10; lmdb's and LSUN's modules are not read."""

import kit

kit.module("requests")
kit.torchvision(count=90)
kit.run()
