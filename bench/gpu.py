"""Figures of one GPU: bfloat16 against float32, recomputed blocks, and the share of its peak (MFU).

    make gpu          (or: .venv-gpu/bin/python bench/gpu.py --keep bench/results/gpu.json)

Every figure is a median of steps of the trainer's own step function, after a warm-up that takes in the compiler; the
device is waited for before each reading of the clock. Two settings that are compared are timed in turn, in
one process. Without a CUDA device it says so and writes nothing.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import command_line, surroundings, tell
from trainer import build
from trainer.config import Config
from trainer.distributed.compute import allow_tf32
from trainer.loop import Run, next_micro_batches, train_step
from trainer.model.language_model import flops_per_token, shape_of

# The sizes of the goals: depth 20 is width 1280, 0.5 G parameters with a vocabulary of 50304.
FULL = Config(
    depth=20,
    device_batch_size=4,
    max_seq_len=2048,
    vocab_size=50_304,
    corpus_mib=16,
    num_iterations=1_000_000,
)
GIB = 1 << 30
# Recomputing blocks saves what blocks hold: bytes as the vocabulary, so that the logits are no part of the figure.
BLOCKS = replace(FULL, vocab_size=256)


@dataclass(frozen=True)
class Rounds:
    """`warm_up` steps first, then `turns` of `steps` steps each."""

    warm_up: int = 8
    turns: int = 5
    steps: int = 4


@dataclass(frozen=True)
class Figures:
    """The figures of one setting. `activation_bytes`: memory held between forward and backward; None off CUDA."""

    tokens_per_sec: float
    step_s: float
    mfu: float | None
    activation_bytes: int | None
    compiled: bool = False


@dataclass(frozen=True)
class Goal:
    """A figure and its bound. `met` is None if this device cannot judge it."""

    name: str
    value: float
    bound: float
    at_least: bool
    judged: bool = True

    @property
    def met(self) -> bool | None:
        if not self.judged:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound


class Contestant:
    """A training with one setting, stepped on demand."""

    def __init__(self, config: Config, folder: str) -> None:
        self.config = replace(config, checkpoint_dir=folder)
        with open(os.devnull, "w") as quiet, redirect_stdout(quiet):
            session = build.settle(build.open_session(self.config, os.environ))
            self.run: Run = build.build_run(session)
        self.device = session.device.torch_device
        self.peak_flops = session.decision.peak_flops
        self.compiled = session.decision.compile
        self.seconds: list[float] = []

    def steps(self, count: int, *, kept: bool) -> None:
        """Run steps, and record their times if `kept`."""
        for _ in range(count):
            wait_for(self.device)
            started = time.perf_counter()
            batches = next_micro_batches(self.run)
            assert batches is not None
            train_step(self.run, batches)
            wait_for(self.device)
            if kept:
                self.seconds.append(time.perf_counter() - started)

    def activation_bytes(self) -> int | None:
        """Return the additional memory between forward and backward, None off CUDA."""
        if self.device.type != "cuda":
            return None
        numbers = range(self.config.device_batch_size)
        block = self.run.validation.batch(numbers, self.config.max_seq_len).to(self.device)
        wait_for(self.device)
        before = torch.cuda.memory_allocated(self.device)
        with self.run.autocast():
            loss = self.run.bare(block[:, :-1], block[:, 1:])
        wait_for(self.device)
        held = torch.cuda.memory_allocated(self.device) - before
        del loss
        return held

    def figures(self) -> Figures:
        """Return the medians of the recorded steps."""
        step_s = statistics.median(self.seconds)
        rate = self.run.batch.samples * self.config.max_seq_len / step_s
        shape = shape_of(self.config, self.config.vocab_size or 256)
        parameters = sum(p.numel() for p in self.run.bare.parameters())
        peak = self.peak_flops
        work = rate * flops_per_token(shape, parameters, self.config.max_seq_len)
        compiled = self.compiled
        return Figures(rate, step_s, work / peak if peak else None, self.activation_bytes(), compiled)

    def close(self) -> None:
        """Release the memory for the next setting."""
        self.run.feed.close()
        del self.run
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def wait_for(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turn(configs: Mapping[str, Config], rounds: Rounds) -> dict[str, Figures]:
    """Step trainings of several settings in turn. TF32 is set each time, because it is a switch of the process."""
    with tempfile.TemporaryDirectory() as folder:
        entrants = {name: Contestant(config, folder) for name, config in configs.items()}
        try:
            for entrant in entrants.values():
                set_tf32(entrant)
                entrant.steps(rounds.warm_up, kept=False)
            for _ in range(rounds.turns):
                for entrant in entrants.values():
                    set_tf32(entrant)
                    entrant.steps(1, kept=False)
                    entrant.steps(rounds.steps, kept=True)
            return {name: entrant.figures() for name, entrant in entrants.items()}
        finally:
            for entrant in entrants.values():
                entrant.close()


def set_tf32(entrant: Contestant) -> None:
    """Set the switch that `trainer.distributed.compute.allow_tf32` sets once per process."""
    allow_tf32(entrant.config, entrant.device)


def micro_batch() -> int:
    """Samples at once: 4 on a card of 80 GiB, where 16 in float32 do not fit beside the weights and moments of three trainings (H100)."""
    return max(min(torch.cuda.get_device_properties(0).total_memory // GIB // 16, 8), 2)


def measure(full: Config, blocks: Config, rounds: Rounds) -> dict[str, dict[str, Figures]]:
    """Return the figures of all comparisons."""
    full, blocks = replace(full, dtype="float32"), replace(blocks, dtype="float32")
    half, half_blocks = replace(full, dtype="bfloat16"), replace(blocks, dtype="bfloat16")
    return {
        "precision": in_turn(
            {
                "float32": replace(full, compile="off", tf32=False),
                "tf32": replace(full, compile="off", tf32=True),
                "bfloat16": replace(half, compile="off"),
            },
            rounds,
        ),
        "recomputed": in_turn(
            {
                "kept": replace(half_blocks, compile="off"),
                "recomputed": replace(half_blocks, compile="off", gradient_checkpointing=True),
            },
            rounds,
        ),
        "compiled": in_turn({"bfloat16": half}, rounds),
    }


def goals(found: Mapping[str, Mapping[str, Figures]], device_name: str) -> list[Goal]:
    """Return the figures with their bounds."""
    precision, blocks = found["precision"], found["recomputed"]
    told = [
        Goal(
            "bfloat16 / float32 tokens/s",
            precision["bfloat16"].tokens_per_sec / precision["float32"].tokens_per_sec,
            2.0,
            at_least=True,
        ),
        Goal("recomputed / kept step time", blocks["recomputed"].step_s / blocks["kept"].step_s, 1.25, False),
    ]
    kept, recomputed = blocks["kept"].activation_bytes, blocks["recomputed"].activation_bytes
    if kept and recomputed:
        told.append(Goal("recomputed / kept activation memory", recomputed / kept, 0.5, at_least=False))
    best = found["compiled"]["bfloat16"]
    if (mfu := best.mfu) is not None:
        fast = any(word in device_name for word in ("H100", "H200"))
        told.append(Goal("MFU, bfloat16, compiled", mfu, 0.45, at_least=True, judged=fast and best.compiled))
    return told


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and keep. Return 1 if a goal is missed, 2 without a CUDA device."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--micro-batch", type=int, default=0, help="samples at once (default: by the GPU's memory)"
    )
    chosen = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device is visible: nothing was measured, nothing is written", file=sys.stderr)
        return 2
    micro = chosen.micro_batch or micro_batch()
    full, blocks = (replace(config, device_batch_size=micro) for config in (FULL, BLOCKS))
    found = measure(full, blocks, Rounds())
    name = torch.cuda.get_device_name()
    judged = goals(found, name)
    result = {
        "micro_batch": micro,
        "goals": [{**asdict(goal), "met": goal.met} for goal in judged],
        "figures": {
            part: {setting: asdict(figures) for setting, figures in several.items()}
            for part, several in found.items()
        },
        "device": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        **surroundings(),
    }
    tell(result, chosen.keep)
    return 1 if any(goal.met is False for goal in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
