"""tokens/s of the trainer's step: telemetry on against off, and all of it against plain loops.

In one process, in turn (on, off, plain, reference, on, off …), same shape, dtype and threads; ratios of paired blocks,
with a 95 % bootstrap interval of their median. `plain` is what a reader would write by hand around the trainer's own
model: fetch a random batch, forward, backward, clip, step; it logs nothing and checks nothing. `reference` is the
loop and the model of bench/plain_gpt.py (GPT-2's parts, as nanoGPT trains them): as many layers, heads, channels,
positions and ids, but no rotation of queries and keys and no norm on them.

    OMP_NUM_THREADS=2 python bench/trainer.py --blocks 150 [--keep bench/results/trainer.json]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import plain_gpt
from bench.common import command_line, in_turn, interval, surroundings, tell
from trainer import build
from trainer.config import Config
from trainer.hooks import TelemetryHook
from trainer.loop import Run, next_micro_batches, train_step

# Short blocks: what else the machine does then hits both of a pair.
STEPS = 2
SIZE = plain_gpt.Size(layers=4, heads=4, width=128, context=128, vocab_size=256, batch=12)


def prepared(folder: str) -> tuple[Run, np.ndarray]:
    config = Config(
        depth=SIZE.layers,
        model_dim=SIZE.width,
        head_dim=SIZE.width // SIZE.heads,
        device_batch_size=SIZE.batch,
        max_seq_len=SIZE.context,
        num_iterations=1_000_000,
        log_interval=1,
        telemetry_dir=folder,
        device="cpu",
    )
    session = build.settle(build.open_session(config, {}))
    return build.build_run(session), np.asarray(session.train_stream.tokens)


def ours(run: Run, clock: Callable[[], float], *, telemetry: bool) -> float:
    """Tokens per second of some steps with all logging, telemetry as asked."""
    hooks = [hook for hook in run.hooks if telemetry or not isinstance(hook, TelemetryHook)]
    started = clock()
    for _ in range(STEPS):
        batches = next_micro_batches(run)
        assert batches is not None
        report = train_step(run, batches)
        for hook in hooks:
            hook.after_step(run.state, report)
    return STEPS * run.batch.samples * run.config.max_seq_len / (clock() - started)


def plain(run: Run, data: np.ndarray, generator: np.random.Generator, clock: Callable[[], float]) -> float:
    """Tokens per second of the same number of steps, by hand."""
    batch, length = run.batch.samples, run.config.max_seq_len
    started = clock()
    for _ in range(STEPS):
        places = generator.integers(0, len(data) - length - 1, batch)
        x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in places])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in places])
        loss = run.model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(run.bare.parameters(), 1.0)
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=True)
        loss.item()
    return STEPS * batch * length / (clock() - started)


def reference(steps: Iterator[None], clock: Callable[[], float]) -> float:
    """Tokens per second of the same number of steps of the reference."""
    started = clock()
    for _ in range(STEPS):
        next(steps)
    return STEPS * SIZE.batch * SIZE.context / (clock() - started)


def ratio(mine: list[float], theirs: list[float]) -> dict[str, float]:
    """The median ratio of paired blocks, and its 95 % interval."""
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    low, high = interval(ratios, statistics.median)
    return {"median": round(statistics.median(ratios), 4), "low": round(low, 4), "high": round(high, 4)}


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--blocks", type=int, default=150)
    parser.add_argument(
        "--cpu", action="store_true", help="count CPU seconds: for a machine that is not ours alone"
    )
    chosen = parser.parse_args()
    clock = time.process_time if chosen.cpu else time.perf_counter
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as quiet:
        screen, sys.stdout = sys.stdout, quiet
        run, data = prepared(folder)
        generator = np.random.default_rng(0)
        tokens = Path(folder, "tokens.bin")
        tokens.write_bytes(data.astype(np.uint16).tobytes())
        model = plain_gpt.PlainGPT(SIZE)
        steps = plain_gpt.loop(model, plain_gpt.adamw(model, fused=False), tokens, SIZE, quiet)
        rates = in_turn(
            {
                "on": lambda: ours(run, clock, telemetry=True),
                "off": lambda: ours(run, clock, telemetry=False),
                "plain": lambda: plain(run, data, generator, clock),
                "reference": lambda: reference(steps, clock),
            },
            chosen.blocks,
        )
        sys.stdout = screen
    result = {
        "tokens_per_sec": {name: round(statistics.median(values)) for name, values in rates.items()},
        "telemetry on / off": ratio(rates["on"], rates["off"]),
        "all logging on / plain loop, same model": ratio(rates["on"], rates["plain"]),
        "all logging on / reference loop and model": ratio(rates["on"], rates["reference"]),
        "blocks": chosen.blocks,
        "clock": "CPU seconds" if chosen.cpu else "wall",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **surroundings(),
    }
    tell(result, chosen.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
