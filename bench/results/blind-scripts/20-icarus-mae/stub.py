"""Noise for torchvision's CIFAR10; LambdaLR takes the argument `verbose` that torch has since removed."""

import kit
import torch

kit.torchvision(count=48)
Schedule = torch.optim.lr_scheduler.LambdaLR
torch.optim.lr_scheduler.LambdaLR = lambda *given, verbose=None, **named: Schedule(*given, **named)
kit.run()
