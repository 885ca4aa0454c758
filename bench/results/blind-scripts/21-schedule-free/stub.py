"""Noise for torchvision's MNIST."""

import os
import sys

import kit

sys.path.insert(0, os.path.abspath("."))
kit.torchvision(count=420)
kit.run()
