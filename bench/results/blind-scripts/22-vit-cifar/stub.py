"""Noise for torchvision's CIFAR10; wandb is not installed and gets a silent stand-in."""

import types

import kit

kit.module(
    "wandb",
    init=lambda **_: None,
    watch=lambda *_: None,
    log=lambda _: None,
    save=lambda _: None,
    config=types.SimpleNamespace(update=lambda _: None),
)
kit.torchvision(count=24)
kit.run(cpu=True)
