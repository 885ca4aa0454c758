"""HF's Trainer with --deepspeed FILE, where deepspeed itself is not installed: the file's batch is held to what DeepSpeed documents.

train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps × ranks, or it refuses; what the file says of the
batch must be what TrainingArguments say ("auto": taken from them), or transformers' own check refuses. Then it trains without.
"""

import json
import os
import sys

import hf_oom
from transformers import HfArgumentParser, TrainingArguments

AT = sys.argv.index("--deepspeed")
FILE = sys.argv[AT + 1]


def check(args, says):
    """As deepspeed/runtime/config.py and transformers/integrations/deepspeed.py do."""
    ranks = int(os.environ["WORLD_SIZE"])
    given = {
        "train_micro_batch_size_per_gpu": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "train_batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * ranks,
    }
    wrong = [
        f"- ds {name}={says[name]} vs hf {value}"
        for name, value in given.items()
        if says[name] not in ("auto", value)
    ]
    if wrong:
        raise ValueError(
            "Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
            + "\n".join(wrong)
        )


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        sys.argv[1:AT] + sys.argv[AT + 2 :]
    )
    with open(FILE, encoding="utf-8") as file:
        check(args, json.load(file))
    hf_oom.train(args)


if __name__ == "__main__":
    main()
