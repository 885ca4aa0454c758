"""A config file: YAML by a --config flag."""

import argparse

import yaml
from model import train


class DataLoader:
    """Stands for torch's."""

    def __init__(self, data, batch_size):
        self.batch_size = batch_size


parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
parser.add_argument("--limit", type=int, default=13)
parser.add_argument("--tell", default="")
args = parser.parse_args()
with open(args.config, encoding="utf-8") as file:
    cfg = yaml.safe_load(file)
loader = DataLoader([], batch_size=cfg["train"]["batch_size"])
train(loader.batch_size, cfg["train"]["grad_accum_steps"], limit=args.limit, tell=args.tell)
