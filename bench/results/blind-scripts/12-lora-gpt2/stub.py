"""Sentences of random tokens in the script's own file format; GPT-2 is made small (2 layers of 32)."""

import json
import os
import random
import sys

import kit

here = os.path.abspath("examples/NLG/src")
sys.path[:0] = [os.path.abspath("."), here]
for name in ("train", "valid"):
    with open(f"{name}.{os.getpid()}", "w") as file:
        for _ in range(180 if name == "train" else 8):
            pair = [random.choices(range(2000), k=random.randint(6, 14)) for _ in range(2)]
            file.write(json.dumps({"context": pair[0], "completion": pair[1]}) + "\n")
    os.replace(f"{name}.{os.getpid()}", f"{name}.jsonl")

import model  # noqa: E402

Config = model.GPT2Config
model.GPT2Config = lambda **given: Config(
    **{**given, "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size_or_config_json_file": 2000}
)
kit.run(cpu=True)
