"""A folder of noise for torchvision's ImageFolder."""

import os

import kit

os.makedirs("sample", exist_ok=True)
os.makedirs("checkpoint", exist_ok=True)
kit.torchvision(count=64, side=20)
kit.run()
