"""What stoker's front door costs, as a ratio to Python's own start, in one run, interleaved.

    python bench/startup.py [--rounds 15] [--keep bench/results/startup.json]

Goals: `stoker --help` at most 3 × `python -c pass`; `stoker diagnose small.log` at most 8 ×.
Prints medians and ratios; exit 1 when a goal is missed.
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

from bench.common import ROOT, command_line, in_turn, keep, surroundings

GOALS = {"--help": 3.0, "diagnose": 8.0}


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "small.log")
        lines = [f"step {n} loss {4.0 / n:.4f}" for n in range(1, 2000)]
        log.write_text(
            "\n".join([*lines, "Traceback (most recent call last):", "KeyError: 'labels'", ""]),
            encoding="utf-8",
        )
        stoker = ["-m", "supervisor"]
        times = in_turn(
            {
                "pass": started(folder, "-c", "pass"),
                "--help": started(folder, *stoker, "--help"),
                "diagnose": started(folder, *stoker, "diagnose", str(log)),
            },
            args.rounds,
        )
    base = statistics.median(times["pass"])
    missed = 0
    result: dict[str, object] = {
        "rounds": args.rounds,
        "python_pass_ms": round(base * 1000, 1),
        **surroundings(),
    }
    print(f"python -c pass   {base * 1000:7.1f} ms   ({args.rounds} rounds after one thrown away)")
    for name, goal in GOALS.items():
        ratios = [mine / own for mine, own in zip(times[name], times["pass"], strict=True)]
        ratio = statistics.median(ratios)
        missed += ratio > goal
        result[name.lstrip("-")] = {"ratio": round(ratio, 2), "goal": goal}
        took_ms = statistics.median(times[name]) * 1000
        spread = f"of {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"stoker {name:9} {took_ms:7.1f} ms   {ratio:.2f} × ({spread}; goal ≤ {goal:.0f})")
    keep(result, args.keep)
    return int(missed > 0)


def started(folder: str, *words: str) -> Callable[[], float]:
    """A start of Python with these words, from its command to its end; each call gives its seconds."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": folder,
        # As after an installation: compiled once (in the round thrown away), apart from the checkout.
        "PYTHONPYCACHEPREFIX": str(Path(folder, "pyc")),
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)

    def start() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *words], env=env, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        return time.perf_counter() - began

    return start


if __name__ == "__main__":
    sys.exit(main())
