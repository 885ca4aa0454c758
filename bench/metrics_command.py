"""The CPU time of `stoker metrics` compared with a ten-line script on the same log.

    python bench/metrics_command.py [--lines 1700000] [--rounds 5] [--attach] [--keep bench/results/metrics_command.json]

The log is a training's: a time stamp, a level, a counter, and six measurements a line, some 130 bytes. The scripts search each line for `key: value` by one
regular expression and print what they found, by `json.dumps`. CPU time of the whole process, output to /dev/null, all commands in turn,
after one round that is thrown away. Goals: half of the script's time; `attach --no-ui` of the finished log (with --attach) at most 1.5 × `metrics`.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, Ratio, command_line, in_turn, ratios, surroundings, tell

FIND = r"""
import json, re, sys
PAIR = re.compile(r"([A-Za-z_][\w/ .-]*?)\s*[=:]\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
"""
JSON_SCRIPT = (
    FIND
    + """
for line in open(sys.argv[1], errors="replace"):
    found = {name: float(value) for name, value in PAIR.findall(line)}
    if found:
        print(json.dumps(found))
"""
)


RATIOS = (
    Ratio("json_ratio", "metrics --json", "script, json.dumps", 0.5),
    Ratio("attach_ratio", "attach --no-ui", "metrics --json", 1.5),
)


def write_log(path: Path, lines: int) -> None:
    """Write a log of metric lines."""
    draw = random.Random(0)
    with path.open("w", encoding="ascii") as log:
        for step in range(lines):
            clock = f"2026-11-20 {step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02},{step % 1000:03}"
            log.write(
                f"{clock} INFO trainer step: {step}/{lines} loss: {draw.uniform(1, 9):.4f} lr: {draw.uniform(1e-5, 3e-4):.3e}"
                f" grad_norm: {draw.uniform(0.1, 5):.3f} tok/s: {draw.randrange(40_000, 120_000)} mem: 61.5GB\n"
            )


def cpu_seconds(command: Sequence[str]) -> Callable[[], float]:
    """Return a function that runs a command without output and returns its CPU time."""

    def once() -> float:
        before = os.times()
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    return once


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--lines", type=int, default=1_700_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attach", action="store_true", help="also `stoker attach --no-ui`")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "train.log"
        write_log(log, args.lines)
        stoker = [sys.executable, "-m", "supervisor"]
        commands = {
            "metrics --json": [*stoker, "metrics", str(log), "--json"],
            "script, json.dumps": [sys.executable, "-c", JSON_SCRIPT, str(log)],
        }
        if args.attach:
            os.utime(log, (0.0, 0.0))  # of one that was written lately it would wait for more
            commands["attach --no-ui"] = [*stoker, "attach", str(log), "--no-ui"]
        found = in_turn({name: cpu_seconds(command) for name, command in commands.items()}, args.rounds)
        report: dict[str, object] = {
            **surroundings(),
            "lines": args.lines,
            "log_mb": round(log.stat().st_size / 1e6),
            "rounds": args.rounds,
            "cpu_s": {name: round(statistics.median(times), 2) for name, times in found.items()},
            **ratios(found, RATIOS[: 2 if args.attach else 1]),
        }
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
