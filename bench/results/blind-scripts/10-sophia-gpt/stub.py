"""Random tokens in the script's own two files."""

import os

import kit
import numpy

os.makedirs("data/openwebtext", exist_ok=True)
for name in ("train", "val"):
    numpy.random.RandomState(0).randint(0, 50000, 20000).astype("uint16").tofile(
        f"data/openwebtext/{name}.{os.getpid()}"
    )
    os.replace(f"data/openwebtext/{name}.{os.getpid()}", f"data/openwebtext/{name}.bin")
kit.run(cpu=True)
