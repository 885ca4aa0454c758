"""Noise pictures in files under the script's own list; the model is made small; timm and numpy are dressed as their old versions."""

import os
import sys

import kit
import numpy
import timm
import timm.optim.optim_factory as factory
from PIL import Image


class Block(timm.models.vision_transformer.Block):
    def __init__(self, *args, qk_scale=None, **given):
        super().__init__(*args, **given)


timm.models.vision_transformer.Block = Block
numpy.float = float
timm.__version__ = "0.3.2"
if not hasattr(factory, "add_weight_decay"):
    from timm.optim import param_groups_weight_decay

    factory.add_weight_decay = lambda model, decay: param_groups_weight_decay(model, decay)

kit.module("torch._six", inf=float("inf"))
os.makedirs("pictures/train", exist_ok=True)
for i in range(8):
    path = f"pictures/train/{i}.png"
    Image.fromarray(numpy.random.RandomState(i).randint(0, 256, (64, 64, 3)).astype("uint8")).save(
        f"{path}.{os.getpid()}", "png"
    )
    os.replace(f"{path}.{os.getpid()}", path)
with open(f"list.{os.getpid()}", "w") as f:
    f.writelines(f"{i % 8}.png {i % 10}\n" for i in range(160))
os.replace(f"list.{os.getpid()}", "pictures/train.txt")

sys.path.insert(0, os.path.abspath("."))
import models_mae  # noqa: E402

kind = next(
    v for v in vars(models_mae).values() if isinstance(v, type) and v.__name__.startswith("MaskedAuto")
)
models_mae.mae_vit_base_patch16_dec512d2b = lambda **given: kind(
    img_size=64,
    patch_size=16,
    embed_dim=48,
    depth=2,
    num_heads=3,
    decoder_embed_dim=32,
    decoder_depth=1,
    decoder_num_heads=2,
    mlp_ratio=2,
    **given,
)
kit.run(cpu=True)
