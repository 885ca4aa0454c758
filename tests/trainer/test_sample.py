"""Text from a checkpoint: four commands from a folder of .txt to a sentence."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.trainer.runs import MAIN
from trainer.model.language_model import GPT, Shape
from trainer.sample import tokens_after

SHAPE = Shape(depth=2, width=32, head_width=16, vocab_size=256, max_seq_len=16, tied=False)


def random_model() -> GPT:
    torch.manual_seed(0)
    model = GPT(SHAPE).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def drawn(model: GPT, seed: int = 0, count: int = 40, **how: float) -> list[int]:
    settings = {"temperature": 1.0, "top_k": 0, **how}
    return list(
        tokens_after(
            model,
            list(b"once"),
            count=count,
            temperature=settings["temperature"],
            top_k=int(settings["top_k"]),
            generator=torch.Generator().manual_seed(seed),
        )
    )


@torch.inference_mode()
def test_what_is_drawn_follows_seed_temperature_and_top_k() -> None:
    model = random_model()
    assert drawn(model, 1) == drawn(model, 1)
    assert drawn(model, 1) != drawn(model, 2)
    assert drawn(model, 1, temperature=0) == drawn(model, 2, temperature=0) == drawn(model, 1, top_k=1)
    first = model(torch.tensor([list(b"once")]))[0, -1]
    likeliest = set(first.topk(3).indices.tolist())
    assert {drawn(model, seed, 1, top_k=3)[0] for seed in range(60)} == likeliest
    assert len(drawn(model)) == 40, "twice as long as the model's positions, and more"


@pytest.mark.e2e
def test_the_readmes_commands_lead_from_a_folder_of_text_to_a_sentence(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for at in range(30):
        (texts / f"{at}.txt").write_text("Once upon a time there was a cat. " * 40, encoding="utf-8")
    readme = (MAIN.parent / "README.md").read_text(encoding="utf-8")
    commands = [
        shlex.split(line)[3:]
        for line in readme.splitlines()
        if line.startswith("    python -m stoker.trainer")
    ]
    assert len(commands) == 3
    # The same, of a size that a test can wait for.
    commands[1] += [
        "--depth=1",
        "--model_dim=64",
        "--max_seq_len=64",
        "--num_iterations=80",
        "--learning_rate=0.01",
    ]
    commands[2] += ["--tokens=30", "--temperature=0"]
    for words in commands:
        done = subprocess.run(
            [sys.executable, str(MAIN), *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Once upon a time there was a cat. ")
