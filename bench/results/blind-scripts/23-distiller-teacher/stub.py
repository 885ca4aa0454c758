"""Noise for torchvision's CIFAR100; the logger is not installed and gets a silent stand-in."""

import kit

kit.module("tensorboard_logger", Logger=lambda **_: kit.module("nothing", log_value=lambda *_: None))
kit.torchvision(count=180)
kit.run(cpu=True)
