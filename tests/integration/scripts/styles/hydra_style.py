"""Hydra's overrides: key=value words with dotted keys, read as attributes."""

import sys
from types import SimpleNamespace

from model import train


class DataLoader:
    """Stands for torch's."""

    def __init__(self, data, batch_size):
        self.batch_size = batch_size


cfg = SimpleNamespace(train=SimpleNamespace(batch_size=16, accumulation=3), limit=13, tell="")
for word in sys.argv[1:]:
    key, _, value = word.partition("=")
    *parents, last = key.split(".")
    place = cfg
    for parent in parents:
        place = getattr(place, parent)
    setattr(place, last, int(value) if value.isdigit() else value)
loader = DataLoader([], batch_size=cfg.train.batch_size)
train(loader.batch_size, cfg.train.accumulation, limit=cfg.limit, tell=cfg.tell)
