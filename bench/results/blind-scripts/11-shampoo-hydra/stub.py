"""Noise for torchvision's CIFAR10; the example is run as a module of its package, as its page says."""

import os
import runpy
import sys

import kit

kit.torchvision(count=200)
sys.path.insert(0, os.path.abspath("."))
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
