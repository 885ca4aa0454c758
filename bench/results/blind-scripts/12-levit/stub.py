"""Noise for torchvision's CIFAR100; a newer timm gives models more arguments than this one takes, so it is called directly."""

import os
import sys

import kit
import timm.models

sys.path.insert(0, os.path.abspath("."))
import levit

timm.models.create_model = lambda name, **given: getattr(levit, name)(**given)
kit.torchvision(count=24)
kit.run(cpu=True)
