"""A folder of noise for torchvision's ImageFolder; the assignment solver of its evaluation is not installed and not reached."""

import os
import sys

import kit

sys.path.insert(0, os.path.abspath("."))
kit.module("munkres", Munkres=None)
kit.torchvision(count=20, side=64)
kit.run(cpu=True)
