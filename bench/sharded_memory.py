"""Host memory of a rank: FSDP2 against the unsplit model, for a model of 200 M parameters; first weights, steps, checkpoint, resume.

Each rank runs the trainer as it is, and notes its resident memory just before the model is made and its peak (VmHWM) from then on. The
unsplit peak does not depend on the number of ranks, so it is taken of two. A resumed training is measured in the same way: its
checkpoint is one that FSDP2 wrote on two ranks, or, for the unsplit model, its own.

    OMP_NUM_THREADS=1 python bench/sharded_memory.py [--keep bench/results/sharded_memory.json]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, status, surroundings, tell

SHAPE = ("--depth=16", "--model_dim=1024", "--head_dim=64", "--corpus_mib=1", "--device=cpu", "--compile=off")
BATCH = ("--device_batch_size=1", "--max_seq_len=32", "--total_batch_size=128")
STEPS, RESUMED_STEPS = 2, 3


def rank(arguments: list[str]) -> None:
    """One rank: the trainer, with a look at its memory before the model."""
    from trainer import build
    from trainer.config import Config
    from trainer.settings import read

    config: Config = read(arguments).config
    before: dict[str, int] = {}
    made = build.model_of  # type: ignore[attr-defined]

    def noted(*given: Any, **named: Any) -> Any:
        if not before:
            before.update(status(os.getpid()))
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        return made(*given, **named)

    build.model_of = noted  # type: ignore[attr-defined]
    build.execute(config, dict(os.environ))
    after = status(os.getpid())
    note = {"before": before["VmRSS"], "peak": after["VmHWM"]}
    Path(f"memory{os.environ['RANK']}.json").write_text(json.dumps(note))


def peak_bytes(folder: Path, ranks: int, *more: str) -> int:
    """The greatest peak of a rank above what it held before the model, in bytes.

    Raises:
        RuntimeError: the training failed.
    """
    launch = ["-m", "torch.distributed.run", "--standalone", "--max-restarts=0", f"--nproc-per-node={ranks}"]
    words = [*SHAPE, *BATCH, "--checkpoint_dir=ck", "--learning_rate=1e-4", "--lr_schedule=constant", *more]
    done = subprocess.run(
        [sys.executable, *launch, str(Path(__file__).resolve()), "--rank", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    notes = [json.loads((folder / f"memory{each}.json").read_text()) for each in range(ranks)]
    return max(int(note["peak"]) - int(note["before"]) for note in notes)


def main() -> int:
    if sys.argv[1:2] == ["--rank"]:
        rank(sys.argv[2:])
        return 0
    chosen = command_line(__doc__).parse_args()
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for way, ranks, shard in (
            ("unsplit", 2, "none"),
            ("fsdp2, 2 ranks", 2, "fsdp2"),
            ("fsdp2, 4 ranks", 4, "fsdp2"),
        ):
            more = (f"--shard={shard}", "--keep_checkpoints=1")
            found[way] = {"first": peak_bytes(folder, ranks, *more, f"--num_iterations={STEPS}")}
            kept = folder / "ck" / f"step_{STEPS:08d}"
            resume = (*more, f"--num_iterations={RESUMED_STEPS}", f"--resume_from={kept}")
            found[way]["resumed"] = peak_bytes(folder, ranks, *resume)
            subprocess.run(["rm", "-r", str(folder / "ck")], check=True)
    result = {
        "parameters": 16 * 12 * 1024**2 + 2 * 256 * 1024,
        "peak MiB of a rank above what it held before the model": {
            way: {what: round(value / 2**20) for what, value in peaks.items()} for way, peaks in found.items()
        },
        "share of the unsplit": {
            way: {what: round(value / found["unsplit"][what], 3) for what, value in peaks.items()}
            for way, peaks in found.items()
        },
        **surroundings(),
    }
    tell(result, chosen.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
