"""What stoker's front door costs, as a ratio to Python's own start, in one run, interleaved.

    python bench/startup.py [ROUNDS [RESULT.json]]

Goals: `stoker --help` at most 3 × `python -c pass`; `stoker diagnose small.log` at most 5 ×.
Prints medians and ratios; exit 1 when a goal is missed.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOALS = {"--help": 3.0, "diagnose": 5.0}


def main(rounds: int, keep: str | None = None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "small.log")
        lines = [f"step {n} loss {4.0 / n:.4f}" for n in range(1, 2000)]
        log.write_text(
            "\n".join([*lines, "Traceback (most recent call last):", "KeyError: 'labels'", ""]),
            encoding="utf-8",
        )
        python, stoker = sys.executable, [sys.executable, "-m", "supervisor"]
        commands = {
            "pass": [python, "-c", "pass"],
            "--help": [*stoker, "--help"],
            "diagnose": [*stoker, "diagnose", str(log)],
        }
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": folder,
            # As after an installation: compiled once (in the round thrown away), apart from the checkout.
            "PYTHONPYCACHEPREFIX": str(Path(folder, "pyc")),
        }
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(rounds + 1):
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, env=env, cwd=folder, stdout=subprocess.DEVNULL, check=False)
                if turn:
                    times[name].append(time.perf_counter() - start)
    base = statistics.median(times["pass"])
    missed = 0
    result: dict[str, object] = {
        "rounds": rounds,
        "python_pass_ms": round(base * 1000, 1),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
    }
    print(f"python -c pass   {base * 1000:7.1f} ms   ({rounds} rounds after one thrown away)")
    for name, goal in GOALS.items():
        ratios = [mine / own for mine, own in zip(times[name], times["pass"], strict=True)]
        ratio = statistics.median(ratios)
        missed += ratio > goal
        result[name.lstrip("-")] = {"ratio": round(ratio, 2), "goal": goal}
        low, high = min(ratios), max(ratios)
        print(
            f"stoker {name:9} {statistics.median(times[name]) * 1000:7.1f} ms   {ratio:.2f} × (of {low:.2f}–{high:.2f}; goal ≤ {goal:.0f})"
        )
    if keep is not None:
        Path(keep).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15, *sys.argv[2:3]))
