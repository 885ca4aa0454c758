"""transformers.Trainer that runs out of memory on rank 1 with more than `LIMIT` samples at once, from the step `FROM` on.

`LOOKS=1`: looks for its newest checkpoint by itself, as transformers' own examples do.
"""

import os

import torch
from told import tell
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

# On CPU ranks the Trainer loads its optimizer to "cpu:0", which torch does not know.
torch.serialization.register_package(
    5, lambda _storage: None, lambda storage, place: storage if place.startswith("cpu") else None
)
LIMIT, FROM = int(os.environ.get("LIMIT", "4")), int(os.environ.get("FROM", "12"))


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, at):
        row = (torch.arange(32) * (at % 7 + 1)) % 97
        return {"input_ids": row, "labels": row}


class Counting(Trainer):
    def training_step(self, model, inputs, *args, **kwargs):
        count, rank = len(inputs["input_ids"]), int(os.environ.get("RANK", "0"))
        tell(self.state.global_step, rank=rank, samples=count)
        if rank == 1 and count > LIMIT and self.state.global_step >= FROM:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 15.00 GiB of which 1.00 GiB is free."
            )
        return super().training_step(model, inputs, *args, **kwargs)


def main():
    (training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
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
    Counting(model=model, args=training_args, train_dataset=Numbers()).train(
        resume_from_checkpoint=checkpoint
    )


if __name__ == "__main__":
    main()
