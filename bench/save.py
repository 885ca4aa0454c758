"""How long a step is blocked by a checkpoint, against the full write of the same state.

In one process, in turn: a save in the step (--no_async_save), a save beside the training, and after each of the
latter steps continue until it is committed. Model of 30 million parameters with AdamW: 360 MB. The first save beside the
training is told apart: its host memory was got in the background a moment before.

    OMP_NUM_THREADS=2 python bench/save.py --rounds 10 [--keep bench/results/save.json]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import command_line, surroundings, tell
from trainer import build
from trainer.checkpoint import storage
from trainer.checkpoint.saving import Saver
from trainer.config import Config
from trainer.loop import Run, next_micro_batches, train_step


def prepared(folder: str, depth: int, width: int, device: str) -> Run:
    config = Config(
        depth=depth,
        model_dim=width,
        device_batch_size=1,
        max_seq_len=64,
        num_iterations=1_000_000,
        keep_checkpoints=1,
        save_every=1_000_000,  # the bench saves by itself; this gets the host memory, as in a run that saves
        checkpoint_dir=folder,
        device=device,
    )
    return build.build_run(build.settle(build.open_session(config, {})))


def step(run: Run) -> float:
    """Seconds of one step; the clock waits for the device."""
    started = time.perf_counter()
    batches = next_micro_batches(run)
    assert batches is not None
    train_step(run, batches)
    return time.perf_counter() - started


def blocked(run: Run, saver: Saver, *, beside: bool) -> float:
    """Seconds that one save holds up the step."""
    saver.config = replace(saver.config, async_save=beside)
    started = time.perf_counter()
    saver.save(run.state, final=False)
    return time.perf_counter() - started


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        name: round(value, 4)
        for name, value in (
            ("median", statistics.median(ordered)),
            ("low", ordered[0]),
            ("high", ordered[-1]),
        )
    }


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--depth", type=int, default=9)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", help="where to write; default: a temporary folder")
    chosen = parser.parse_args()
    full: list[float] = []
    beside: list[float] = []
    background: list[float] = []
    alone: list[float] = []
    during: list[float] = []
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder, open(os.devnull, "w") as quiet:
        screen, sys.stdout = sys.stdout, quiet
        run = prepared(folder, chosen.depth, chosen.width, chosen.device)
        saver = run.saving
        assert isinstance(saver, Saver)
        for _ in range(5):
            step(run)
        first = blocked(run, saver, beside=True)
        saver.settle()
        for _ in range(chosen.rounds):
            alone.extend(step(run) for _ in range(3))
            full.append(blocked(run, saver, beside=False))
            step(run)
            began = time.perf_counter()
            beside.append(blocked(run, saver, beside=True))
            while not saver.ended():
                during.append(step(run))
            background.append(time.perf_counter() - began)
            saver.settle()
            step(run)
        path, _ = storage.newest(Path(folder))
        assert path is not None
        size = sum(entry.stat().st_size for entry in path.iterdir())
        saver.close()
        sys.stdout = screen
    ratios = [a / b for a, b in zip(beside, full, strict=True)]
    result = {
        "parameters": sum(p.numel() for p in run.bare.parameters()),
        "checkpoint_bytes": size,
        "seconds blocked, in the step": spread(full),
        "seconds blocked, beside the training": spread(beside),
        "seconds until committed, beside the training": spread(background),
        "blocked beside / blocked in the step": spread(ratios),
        "first save beside / blocked in the step": round(first / statistics.median(full), 4),
        "step during a write / step": round(statistics.median(during) / statistics.median(alone), 3),
        "rounds": chosen.rounds,
        "device": torch.cuda.get_device_name() if chosen.device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **surroundings(),
    }
    tell(result, chosen.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
