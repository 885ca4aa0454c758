"""Small trainings for tests: in this process, or as real processes by the trainer's path."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.config import Config, check

MAIN = Path(__file__).parents[2] / "trainer" / "__main__.py"
TINY: Mapping[str, Any] = {
    "depth": 1,
    "model_dim": 32,
    "head_dim": 16,
    "device_batch_size": 4,
    "total_batch_size": 8 * 32,
    "max_seq_len": 32,
    "num_iterations": 6,
    "corpus_mib": 1,
    "device": "cpu",
    "learning_rate": 3e-3,
}


def train_here(folder: Path, env: Mapping[str, str] | None = None, **settings: Any) -> int:
    """Trains in this process; telemetry goes to `folder`/tel, checkpoints to `folder`/ck. Returns the exit code."""
    from trainer.build import execute

    values = {"telemetry_dir": str(folder / "tel"), "checkpoint_dir": str(folder / "ck"), **TINY, **settings}
    config = Config(**values)
    check(config)
    with restored_signals():
        return execute(config, env or {})


@contextmanager
def restored_signals() -> Iterator[None]:
    """The trainer installs handlers for its own process; a test gives them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def flags(**settings: Any) -> list[str]:
    """TINY and `settings` as flags."""
    return [f"--{name}={value}" for name, value in {**TINY, **settings}.items()]


def command(ranks: int, *args: str) -> list[str]:
    """A command line for the trainer by its path: plain for one rank, under torchrun for more."""
    if ranks == 1:
        return [sys.executable, str(MAIN), *args]
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--max-restarts=0",
        f"--nproc-per-node={ranks}",
    ]
    return [sys.executable, *launcher, str(MAIN), *args]


def run(ranks: int, *args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end."""
    return subprocess.run(
        command(ranks, *args),
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def environment(**env: str) -> dict[str, str]:
    """This process's environment as stoker would change it: safe path, one thread a rank."""
    return {**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", **env}


def records(folder: Path, rank: int = 0, kind: str | None = None) -> list[dict[str, Any]]:
    """Telemetry records of a rank."""
    path = folder / "tel" / f"rank{rank}.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in found if kind is None or record["kind"] == kind]


def losses(folder: Path) -> dict[int, float]:
    """Training loss by step; of a step done twice the later one."""
    return {r["step"]: r["loss"] for r in records(folder, kind="step") if "loss" in r}
