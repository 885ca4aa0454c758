"""transformers' own command line, as its examples have it: per-device batch from the flags, samples too long for it."""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, at):
        row = torch.randint(0, 50257, (1024,), generator=torch.Generator().manual_seed(at))
        return {"input_ids": row, "labels": row}


def main():
    (training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    last_checkpoint = (
        get_last_checkpoint(training_args.output_dir) if os.path.isdir(training_args.output_dir) else None
    )
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=4))
    Trainer(model=model, args=training_args, train_dataset=Tokens()).train(
        resume_from_checkpoint=last_checkpoint
    )


if __name__ == "__main__":
    main()
