"""Random tokens in the script's own file; the model is made small (1 layer of 32) and its windows have 48 tokens."""

import os
import sys

import kit
import numpy

sys.path.insert(0, os.path.abspath("."))
os.makedirs("data", exist_ok=True)
os.makedirs("out/pretrain", exist_ok=True)  # two ranks race to make it
numpy.random.RandomState(0).randint(0, 1000, 512 * 130).astype("uint16").tofile(f"data/{os.getpid()}")
os.replace(f"data/{os.getpid()}", "data/pretrain_data.bin")
import dataset  # noqa: E402
import model  # noqa: E402

Args, Data = model.ModelArgs, dataset.PretrainDataset
model.ModelArgs = lambda **given: Args(
    **{**given, "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "vocab_size": 1000}
)
dataset.PretrainDataset = lambda paths, max_length, memmap: Data(paths, max_length=48, memmap=memmap)
kit.run(cpu=True)
