"""A tiny GPT-2 and a word tokenizer in a folder, and 200 made-up instructions; the Trainer's renamed argument is passed on."""

import json
import os

import kit
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

folder = f"tiny.{os.getpid()}"
words = {w: i for i, w in enumerate(["<unk>", "</s>", "[PAD]", *(f"w{i}" for i in range(100))])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", bos_token="</s>", pad_token="[PAD]"
)
fast.save_pretrained(folder)
config = transformers.GPT2Config(vocab_size=len(words), n_positions=64, n_embd=32, n_layer=2, n_head=2)
transformers.GPT2LMHeadModel(config).save_pretrained(folder)
with open(f"{folder}.json", "w") as f:
    json.dump([{"instruction": f"w{i % 90} w3", "input": "", "output": "w5 " * 9} for i in range(200)], f)
os.replace(f"{folder}.json", "code.json")
try:
    os.rename(folder, "tiny")
except OSError:
    pass  # the other rank was first
start = transformers.Trainer.__init__
transformers.Trainer.__init__ = lambda self, *args, tokenizer=None, **given: start(
    self, *args, processing_class=tokenizer, **given
)
kit.module("openai", openai_object=kit.module("openai.openai_object", OpenAIObject=dict))
kit.run()
