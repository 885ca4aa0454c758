"""A foreign training that tells stoker nothing and leaves checkpoints as transformers' Trainer does. It fails once, at `--fail-at`."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--resume_from_checkpoint", default=None)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--fail-at", type=int, default=18)
    args = parser.parse_args()
    rank, out = int(os.environ["RANK"]), Path(args.output_dir)
    first = 0
    if getattr(args, "resume_from_checkpoint", None):
        state = json.loads(Path(args.resume_from_checkpoint, "trainer_state.json").read_text())
        first = state["global_step"]
        print(f"continuing from {args.resume_from_checkpoint}", flush=True)
    for step in range(first + 1, args.steps + 1):
        time.sleep(0.05)
        if rank == 0:
            print(f"step {step}/{args.steps} loss: {3.0 / step:.4f}", flush=True)
            if step % 5 == 0:
                save(out / f"checkpoint-{step}", step)
        if rank == 0 and step == args.fail_at and first == 0:
            os._exit(7)


def save(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))


if __name__ == "__main__":
    main()
