"""The trainer's GPT-2 against transformers' own, from one file of random weights."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch

from trainer.checkpoint.saving import put_weights
from trainer.model.gpt2 import weights_from
from trainer.model.language_model import Shape, model_of


def test_logits_are_those_of_transformers(tmp_path: Path, python: str) -> None:
    script = Path(__file__).parent / "scripts" / "random_gpt2.py"
    subprocess.run([python, str(script), str(tmp_path)], check=True, timeout=200)
    model = model_of(Shape(3, 128, 64, 300, 48, tied=True, arch="gpt2")).eval()
    put_weights(model, weights_from(tmp_path / "model.safetensors", model.shape))
    truth = torch.load(tmp_path / "truth.pt", weights_only=True)
    with torch.no_grad():
        assert torch.allclose(model(truth["tokens"]), truth["logits"], atol=1e-4)
