"""The flags of Hugging Face's Trainer."""

import argparse

from model import train

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--per_device_eval_batch_size", type=int, default=64)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--output_dir", default="out")
parser.add_argument("--limit", type=int, default=13)
parser.add_argument("--tell", default="")
args = parser.parse_args()
train(args.per_device_train_batch_size, args.gradient_accumulation_steps, limit=args.limit, tell=args.tell)
