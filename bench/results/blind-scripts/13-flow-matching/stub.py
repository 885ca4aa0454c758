"""Noise for torchvision's CIFAR10; optimal transport and the ODE solver (sampling) are not installed and not reached."""

import os
import sys

import kit

sys.path.insert(0, os.path.abspath("."))
kit.module("ot")
kit.module("torchdyn")
kit.module("torchdyn.core", NeuralODE=None)
kit.torchvision(count=48)
kit.run(cpu=True)
