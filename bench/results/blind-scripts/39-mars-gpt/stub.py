"""Random tokens in the script's own files."""

import os

import kit
import numpy

folder = "data/fineweb-edu100B"
os.makedirs(folder, exist_ok=True)
for name in ("fineweb_train_000001", "fineweb_val_000000"):
    numpy.random.RandomState(0).randint(0, 50000, 20000).astype("uint16").tofile(f"{folder}/{os.getpid()}")
    os.replace(f"{folder}/{os.getpid()}", f"{folder}/{name}.bin")
kit.run(cpu=True)
