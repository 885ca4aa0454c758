"""A config file: YAML by a --config flag; a plain reader of `key: value` lines in sections."""

import argparse

from model import train


class DataLoader:
    """Stands for torch's."""

    def __init__(self, data, batch_size):
        self.batch_size = batch_size


def read(path):
    """Two levels of YAML, comments dropped."""
    found, here = {}, {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            text = line.partition("#")[0].rstrip()
            key, colon, value = text.strip().partition(":")
            if colon and not value.strip():
                here = found[key] = {}
            elif colon:
                (here if text.startswith(" ") else found)[key] = value.strip()
    return found


parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
parser.add_argument("--limit", type=int, default=13)
parser.add_argument("--tell", default="")
args = parser.parse_args()
cfg = read(args.config)
loader = DataLoader([], batch_size=int(cfg["train"]["batch_size"]))
train(loader.batch_size, int(cfg["train"]["grad_accum_steps"]), limit=args.limit, tell=args.tell)
