"""Writes a GPT-2 of transformers with random weights, and its logits of some tokens, into a folder."""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

folder = Path(sys.argv[1])
torch.manual_seed(0)
shape = GPT2Config(
    n_layer=3, n_head=2, n_embd=128, vocab_size=300, n_positions=64, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(shape).eval()
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.2)
model.save_pretrained(folder)
tokens = torch.randint(0, 300, (2, 32))
with torch.no_grad():
    torch.save({"tokens": tokens, "logits": model(tokens).logits}, folder / "truth.pt")
