"""Noise for torchvision's CIFAR10; the metrics, which are off, are not imported."""

import kit

kit.torchvision(count=280)
kit.module("pytorch_gan_metrics", get_inception_score_and_fid=None)
kit.run(cpu=True)
