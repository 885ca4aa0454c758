"""Counts aborts at exit over many healthy two-rank runs.

A healthy gloo script that ends with a bare destroy_process_group() aborted in 7 of 46 runs; the trainer's exit
sequence (graph dropped, barrier, destroy, then the model) is held to none.

    python bench/exit.py --runs 200 [--keep bench/results/exit.json]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import LAUNCH, TRAINER, command_line, surroundings, tell

TINY = (
    "--depth=1",
    "--model_dim=32",
    "--head_dim=16",
    "--device_batch_size=4",
    "--max_seq_len=32",
    "--num_iterations=3",
    "--corpus_mib=1",
    "--device=cpu",
)


def one_run(folder: Path) -> tuple[int, str]:
    """Exit status of one healthy run, and the end of its stderr if it is not 0."""
    done = subprocess.run(
        [
            sys.executable,
            *LAUNCH,
            str(TRAINER),
            *TINY,
            f"--checkpoint_dir={folder / 'ck'}",
            f"--telemetry_dir={folder}",
        ],
        env={**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    finished = all(
        '"reason":"done"' in (folder / f"rank{rank}.jsonl").read_text().splitlines()[-1] for rank in (0, 1)
    )
    if done.returncode == 0 and finished:
        return 0, ""
    return done.returncode or 1, done.stderr[-2000:]


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--runs", type=int, default=20)
    chosen = parser.parse_args()
    bad: list[str] = []
    started = time.monotonic()
    for number in range(chosen.runs):
        with tempfile.TemporaryDirectory() as folder:
            status, text = one_run(Path(folder))
        if status:
            bad.append(text)
            print(f"run {number + 1}: exit {status}\n{text}", flush=True)
    result = {
        "runs": chosen.runs,
        "not_clean": len(bad),
        "aborts": sum("terminate called" in text or "SIGABRT" in text for text in bad),
        "seconds": round(time.monotonic() - started),
        **surroundings(),
    }
    tell(result, chosen.keep)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
