"""transformers.Trainer that runs out of memory on rank 1 (memory.py).

`LOOKS=1`: looks for its newest checkpoint by itself, as transformers' own examples do.
"""

import os
import time

import torch
from hf import Numbers
from memory import train_on
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

# On CPU ranks the Trainer loads its optimizer to "cpu:0", which torch does not know.
torch.serialization.register_package(
    5, lambda _storage: None, lambda storage, place: storage if place.startswith("cpu") else None
)


class Counting(Trainer):
    def training_step(self, model, inputs, *args, **kwargs):
        train_on(self.state.global_step, len(inputs["input_ids"]))
        time.sleep(0.03)  # a bar that is done within a second is no training's
        return super().training_step(model, inputs, *args, **kwargs)


def train(training_args):
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=1, n_head=2))
    last_checkpoint = None
    if os.path.isdir(training_args.output_dir) and os.environ.get("LOOKS"):
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
    checkpoint = None
    if training_args.resume_from_checkpoint is not None:
        checkpoint = training_args.resume_from_checkpoint
    elif last_checkpoint is not None:
        checkpoint = last_checkpoint
    Counting(model=model, args=training_args, train_dataset=Numbers(4000)).train(
        resume_from_checkpoint=checkpoint
    )


def main():
    (training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    train(training_args)


if __name__ == "__main__":
    main()
