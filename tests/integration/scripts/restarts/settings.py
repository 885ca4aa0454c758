"""A YAML file with the names of transformers, read as `HfArgumentParser` does: the whole text first, then parsed."""

import sys
from pathlib import Path
from types import SimpleNamespace

import yaml
from common import Points, Training
from torch.utils.data import DataLoader, DistributedSampler

args = SimpleNamespace(**yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8")))
training = Training(heads=args.num_attention_heads)
if args.resume_from_checkpoint:
    training.load(args.resume_from_checkpoint)
points = Points()
loader = DataLoader(points, args.per_device_train_batch_size, sampler=DistributedSampler(points))
training.train(loader, args.gradient_accumulation_steps, f"{args.output_dir}/checkpoint.pt")
