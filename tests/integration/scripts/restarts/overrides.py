"""Hydra: groups of settings, with overrides on the command line. Without hydra-core its overrides are read as it reads them."""

import importlib.util
import sys
from types import SimpleNamespace

from common import Points, Training
from torch.utils.data import DataLoader, DistributedSampler


def main(cfg):
    training = Training(heads=cfg.model.heads)
    if cfg.ckpt_path:
        training.load(cfg.ckpt_path)
    points = Points()
    loader = DataLoader(points, cfg.trainer.batch_size, sampler=DistributedSampler(points))
    training.train(loader, cfg.trainer.accumulate, "out/model.ckpt")


if importlib.util.find_spec("hydra"):
    import hydra

    hydra.main(version_base=None, config_path="conf", config_name="train")(main)()
else:
    model, trainer = SimpleNamespace(heads=4), SimpleNamespace(batch_size=4, accumulate=1)
    cfg = SimpleNamespace(model=model, trainer=trainer, ckpt_path=None)
    for word in sys.argv[1:]:
        key, _, value = word.lstrip("+").partition("=")
        group, _, last = key.rpartition(".")
        setattr(getattr(cfg, group) if group else cfg, last, int(value) if value.isdigit() else value)
    main(cfg)
