"""A word tokenizer in a folder, and random tokens in the script's own files of tokens."""

import json
import os

import kit
import numpy
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

words = {w: i for i, w in enumerate(["<unk>", "</s>", "[PAD]", *(f"w{i}" for i in range(97))])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="[PAD]"
).save_pretrained("tiny")
os.makedirs("corpus", exist_ok=True)
for split in ("train", "validation"):
    numpy.random.RandomState(0).randint(3, 100, 40_000).astype("uint16").tofile(f"corpus/{split}.bin")
    with open(f"corpus/{split}.json", "w") as f:
        json.dump({"tokens": 40_000, "dtype": "uint16", "vocab_size": 100, "tokenizer": "tiny"}, f)
kit.run()
