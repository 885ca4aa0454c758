"""What pre-flight costs: `stoker check` whole, and how much later torchrun starts because of it.

    python bench/preflight.py [--rounds 15] [--before CHECKOUT] [--keep bench/results/preflight.json]

- `stoker check JOB`, all but `--deep`, from the command to its end: at most `CHECK_GOAL_S`;
- from `stoker run` to the moment at which the target interpreter is told to run `torch.distributed.run` (a stand-in for the interpreter notes
  it, and runs nothing), paired with `--no-check`, and with another checkout of stoker (`--before`): a ratio whose interval holds 1 is no difference.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, in_turn, interval, surroundings, tell

CHECK_GOAL_S = 1.0
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--resume_from_checkpoint")
"""
# Asked for torch it answers as the interpreter that it stands for; told to launch it notes the time.
INTERPRETER = """#!/bin/sh
case "$*" in
*torch.distributed.run*) date +%s.%N > "$STAMP"; exit 0 ;;
esac
exec {python} "$@"
"""


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT", help="another stoker to compare the start with"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
        python = folder / "python"
        python.write_text(INTERPRETER.format(python=sys.executable), encoding="utf-8")
        python.chmod(0o755)
        job = ["--nproc-per-node", "2", "--master-port", "29411", "train.py", "--batch_size", "8"]
        ways = {
            "check": whole(folder, ROOT, "check", "--python", str(python), *job),
            "start": to_torchrun(folder, ROOT, python, job),
            "start, --no-check": to_torchrun(folder, ROOT, python, ["--no-check", *job]),
        }
        if args.before is not None:
            ways["start, before"] = to_torchrun(folder, args.before, python, job)
        times = in_turn(ways, args.rounds)
    check_s = statistics.median(times["check"])
    result: dict[str, object] = {
        "rounds": args.rounds,
        **surroundings(),
        "check_s": round(check_s, 3),
        "check_most_s": round(max(times["check"]), 3),
        "check_goal_s": CHECK_GOAL_S,
        "start_s": round(statistics.median(times["start"]), 3),
    }
    for other in ("start, --no-check", "start, before"):
        if other in times:
            ratios = [mine / theirs for mine, theirs in zip(times["start"], times[other], strict=True)]
            low, high = interval(ratios, statistics.median)
            result[f"start / ({other})"] = [round(each, 3) for each in (statistics.median(ratios), low, high)]
    tell(result, args.keep)
    return int(check_s > CHECK_GOAL_S)


def whole(folder: Path, checkout: Path, *words: str) -> Callable[[], float]:
    """A command from its start to its end, in seconds."""

    def once() -> float:
        begun = time.perf_counter()
        done = stoker(folder, checkout, *words)
        took = time.perf_counter() - begun
        if done.returncode:
            raise SystemExit(f"stoker {' '.join(words)}: exit {done.returncode}: {done.stderr}")
        return took

    return once


def to_torchrun(folder: Path, checkout: Path, python: Path, job: list[str]) -> Callable[[], float]:
    """From `stoker run` to the start of torchrun, in seconds."""
    stamp = folder / "stamp"

    def once() -> float:
        stamp.unlink(missing_ok=True)
        begun = time.time()
        stoker(folder, checkout, "run", "--no-ui", "--no-retry", "--python", str(python), *job, stamp=stamp)
        return float(stamp.read_text(encoding="ascii")) - begun

    return once


def stoker(
    folder: Path, checkout: Path, *words: str, stamp: Path | None = None
) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_STATE_HOME": str(folder / "state"),
        # As after an installation: compiled once (in the round thrown away), apart from the checkouts.
        "PYTHONPYCACHEPREFIX": str(folder / "pyc"),
        "STAMP": str(stamp or folder / "unused"),
    }
    return subprocess.run(
        [sys.executable, "-m", "supervisor", *words],
        cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
