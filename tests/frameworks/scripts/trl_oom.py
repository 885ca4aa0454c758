"""TRL's SFTTrainer with the arguments of TRL's own scripts; it runs out of memory on rank 1 (memory.py)."""

import random
import time

import torch
from datasets import Dataset
from memory import train_on
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser

# On CPU ranks the Trainer loads its optimizer to "cpu:0", which torch does not know.
torch.serialization.register_package(
    5, lambda _storage: None, lambda storage, place: storage if place.startswith("cpu") else None
)


class Counting(SFTTrainer):
    def training_step(self, model, inputs, *args, **kwargs):
        train_on(self.state.global_step, len(inputs["input_ids"]))
        time.sleep(0.05)
        return super().training_step(model, inputs, *args, **kwargs)


def main():
    training_args, _model_args = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
    words = ["<pad>", "<eos>", "a", "b", "c", "d", "e", "f", "<unk>"]
    bare = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=16,
        n_positions=64,
        n_embd=32,
        n_layer=1,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    texts = random.Random(1)
    rows = [{"text": " ".join(texts.choices("abcdef", [8, 4, 2, 1, 1, 1], k=20))} for _ in range(1000)]
    trainer = Counting(
        model=GPT2LMHeadModel(config),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        args=training_args,
    )
    # No destroy_process_group(): the group then ends with the GIL held, and waits for a thread of gloo that may still want it.
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)


if __name__ == "__main__":
    main()
