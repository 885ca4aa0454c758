"""transformers.Trainer as its documentation has it: arguments of TrainingArguments, a dict every few steps."""

import torch
from told import tell
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Numbers(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, at):
        row = (torch.arange(32) * (at % 7 + 1)) % 97
        return {"input_ids": row, "labels": row}


class Tell(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            tell(state.global_step, loss=float(logs["loss"]), lr=float(logs["learning_rate"]))
        if state.is_world_process_zero and "eval_loss" in logs:
            tell(state.global_step, val_loss=float(logs["eval_loss"]))


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    trainer = Trainer(
        model=model, args=args, train_dataset=Numbers(4000), eval_dataset=Numbers(64), callbacks=[Tell()]
    )
    trainer.train()


if __name__ == "__main__":
    main()
