"""Random latents in the script's own files; no image decoder, the model is made small, and the check for a card is passed."""

import os
import sys

import kit
import numpy
import torch

for kind, value in (
    ("features", lambda i: numpy.random.RandomState(i).randn(1, 4, 32, 32)),
    ("labels", None),
):
    folder = f"features/imagenet256_{kind}"
    os.makedirs(folder, exist_ok=True)
    for i in range(180):
        name = f"{folder}/{i}.npy"
        array = value(i).astype("float32") if value else numpy.array([i % 10])
        with open(f"{os.getpid()}.tmp", "wb") as f:
            numpy.save(f, array)
        os.replace(f"{os.getpid()}.tmp", name)


class Decoder(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, name):
        return cls()


kit.module("diffusers")
kit.module("diffusers.models", AutoencoderKL=Decoder)
sys.path.insert(0, os.path.abspath("."))
import models  # noqa: E402

models.DiT_models["DiT-S/8"] = lambda **given: models.DiT(
    depth=2, hidden_size=48, patch_size=8, num_heads=3, **given
)
checks = iter([True])
real = torch.cuda.is_available
torch.cuda.is_available = lambda: (
    next(checks, False) if sys._getframe(1).f_code.co_filename.endswith("train.py") else real()
)
torch.cuda.synchronize = lambda *_: None
kit.run()
