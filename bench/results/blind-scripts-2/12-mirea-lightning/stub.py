"""Noise for torchvision's CIFAR10, with its full 50,000 pictures; the first 40 batches of an epoch (Lightning's own limit)."""

import kit
import pytorch_lightning

kit.torchvision(count=50_000)


class Trainer(pytorch_lightning.Trainer):
    """Lightning's trainer with a short epoch."""

    def __init__(self, **given):
        super().__init__(limit_train_batches=40, limit_val_batches=5, **given)


pytorch_lightning.Trainer = Trainer
kit.run()
