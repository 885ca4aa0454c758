"""A YAML file with the names of transformers, read as `HfArgumentParser` does: the whole text first, then parsed."""

import sys
from pathlib import Path
from types import SimpleNamespace

import yaml
from common import Points, Training, forever
from torch.utils.data import DataLoader, DistributedSampler

args = SimpleNamespace(**yaml.safe_load(Path(sys.argv[1]).read_text(encoding="utf-8")))
training = Training(heads=args.num_attention_heads)
if args.resume_from_checkpoint:
    training.load(args.resume_from_checkpoint)
points = Points()
batches = forever(DataLoader(points, args.per_device_train_batch_size, sampler=DistributedSampler(points)))
while training.goes_on:
    for _ in range(args.gradient_accumulation_steps):
        training.feed(*next(batches), share=1 / args.gradient_accumulation_steps)
    training.update()
    training.save(f"{args.output_dir}/checkpoint.pt")
training.end()
