"""Noise for torchvision's CIFAR100; numpy gets back the name `int` that it has since removed."""

import kit
import numpy

vars(numpy)["int"] = int
kit.torchvision(count=60)
kit.run(cpu=True)
