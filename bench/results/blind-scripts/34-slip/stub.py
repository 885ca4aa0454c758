"""Noise and captions of random tokens in place of the corpus; tokenizer and logger get stand-ins; the model is made small."""

import os
import sys

import kit
import timm
import timm.models.registry  # which timm no longer imports by itself
import torch

kit.module("wandb")
kit.module("tokenizer", SimpleTokenizer=object)
kit.torchvision(count=16)
sys.path.insert(0, os.path.abspath("."))
import datasets  # noqa: E402
import models  # noqa: E402


class Captions(torch.utils.data.Dataset):
    """120 pictures of 32×32 with captions of 8 tokens."""

    def __getitem__(self, index):
        return torch.rand(3, 32, 32), torch.randint(0, 300, (8,))

    def __len__(self):
        return 120


datasets.get_dataset = lambda transform, tokenizer, args: Captions()
models.CLIP_VITB16 = lambda **given: models.CLIP(
    embed_dim=32,
    vision_width=192,
    context_length=8,
    vocab_size=300,
    transformer_width=32,
    transformer_heads=2,
    transformer_layers=1,
    vision_model=timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=1),
    **given,
)
kit.run(cpu=True)
