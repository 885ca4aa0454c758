"""``python -m trainer.checkpoint verify|inspect|export``: looks at checkpoints, and writes their weights as safetensors."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.checkpoint.storage import CheckpointError, load, one_of, verify, weights_of


def main(argv: Sequence[str]) -> int:
    """``python -m trainer.checkpoint verify|inspect|export``. Returns: 0 sound, 1 damaged or not committed, 2 usage."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}", description="Look at checkpoints.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, text in (
        ("verify", "check marker, sizes and checksums"),
        ("inspect", "list facts and tensors"),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument(
            "path", type=Path, help="a checkpoint, or a folder of checkpoints (the newest is taken)"
        )
    verb = verbs.add_parser("export", help="write model.safetensors and config.json")
    verb.add_argument("path", type=Path, help="a checkpoint, or a folder of checkpoints")
    verb.add_argument("out", type=Path, help="folder to write")
    verb.add_argument("--ema", action="store_true", help="the averaged weights, if there are some")
    chosen = parser.parse_args(argv)
    try:
        path = one_of(chosen.path)
        match chosen.verb:
            case "verify":
                meta = verify(path)
                print(f"{path}: whole, step {meta['step']}, {_bytes_in(path)} bytes")
            case "inspect":
                _inspect(path)
            case _:
                print(export(path, chosen.out, ema=chosen.ema))
    except CheckpointError as error:
        sys.stderr.write(f"{__package__}: {error}\n")
        return 1
    except BrokenPipeError:
        # `inspect … | head`: the reader has seen enough, also of what the interpreter flushes last.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        sys.stderr.write(f"{__package__}: {error}\n")
        return 2
    return 0


def export(path: Path, out: Path, *, ema: bool) -> str:
    """Writes the weights as plain safetensors, and the model's shape.

    Returns:
        One line about what was written.

    Raises:
        CheckpointError: the checkpoint cannot be used, holds no averages, or safetensors is not installed.
    """
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise CheckpointError("export needs safetensors: pip install safetensors") from None
    loaded = load(path)
    weights = weights_of(loaded, ema=ema)
    shape = dict(loaded.meta["shape"])
    # A tied head is the embedding once more: safetensors keeps no tensor twice.
    kept = {
        name: w.contiguous() for name, w in weights.items() if not (shape["tied"] and name == "head.weight")
    }
    out.mkdir(parents=True, exist_ok=True)
    temporary = out / "model.safetensors.tmp"
    save_file(kept, temporary, metadata={"step": str(loaded.meta["step"])})
    os.replace(temporary, out / "model.safetensors")
    kind = "gpt2.GPT2" if shape.get("arch") == "gpt2" else "model.GPT"
    config = {"architecture": f"trainer.{kind}", **shape, "step": loaded.meta["step"]}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return f"{out}: model.safetensors ({len(kept)} tensors{', averaged' if ema else ''}), config.json"


def _inspect(path: Path) -> None:
    loaded = load(path)
    for name, value in sorted(loaded.meta.items()):
        print(f"{name}: {json.dumps(value)}")
    for name, tensor in _tensors("", loaded.state):
        print(f"{ascii(name)[1:-1]}  {list(tensor.shape)}  {str(tensor.dtype).removeprefix('torch.')}")


def _tensors(prefix: str, held: Any) -> list[tuple[str, Tensor]]:
    if isinstance(held, Tensor):
        return [(prefix, held)]
    if isinstance(held, dict):
        return [pair for key, inner in held.items() for pair in _tensors(f"{prefix}/{key}".strip("/"), inner)]
    return []


def _bytes_in(path: Path) -> int:
    return sum(entry.stat().st_size for entry in path.iterdir())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
