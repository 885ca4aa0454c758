"""The cost of a start, as ratios of interleaved rounds, for commands that print and for those that open the dashboard.

    python bench/startup.py [--rounds 15] [--screens 7] [--keep bench/results/startup.json]

Goals:
- `stoker --help` at most 3 × `python -c pass`; `stoker diagnose small.log` at most 8 ×;
- from the command to the app's own first frame (the line of keys at its bottom) at most 2 × an empty Textual app: of
  `attach RUN`, `attach LOG` (7 MB) and the list of runs; of `run` at most 3 ×: it waits for two more processes, the target
  interpreter's answer and then the supervisor process.
Prints medians and ratios; exit 1 when a goal is missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, Ratio, command_line, in_turn, keep, ratios, surroundings
from bench.stage import EMPTY_APP, FakeRun, Terminal

COMMANDS = (Ratio("help", "--help", "pass", 3.0), Ratio("diagnose", "diagnose", "pass", 8.0))
SCREENS = tuple(
    Ratio(name, name, "empty app", goal)
    for name, goal in {"attach RUN": 2.0, "attach LOG": 2.0, "runs": 2.0, "run": 3.0}.items()
)
# The last line of each first frame.
FOOTER = b"leave"
# The app is left this long after its first frame.
LEAVE_AFTER_S = 0.3


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--screens", type=int, default=7, help="rounds of the commands that open the dashboard"
    )
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
    rows = ratios(times, COMMANDS)
    # The last run's supervisor process may still write there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows |= ratios(screens(folder, args.screens), SCREENS)
    keep({"rounds": args.rounds, **surroundings(), **rows}, args.keep)
    return int(any(row["missed"] for row in rows.values()))


def screens(folder: str, rounds: int) -> dict[str, list[float]]:
    """Return the seconds from each command to its first frame."""
    fake = FakeRun(Path(folder, "run", "20261121-0000-start-run"), ranks=2, gpus=2)
    lines = "".join(f"step {n} | loss 2.{n:04d} | lr 3e-4\n" for n in range(1000))
    fake.logs[0].write_text(lines)
    log = Path(folder, "train.log")
    log.write_text(lines * 200)
    stoker = [sys.executable, "-m", "supervisor"]
    runs = ["--runs-dir", f"{folder}/runs"]

    def first_frame(argv: list[str], footer: bytes = FOOTER) -> Callable[[], float]:
        def start() -> float:
            terminal = Terminal(argv, folder)
            try:
                took = terminal.wait_for(footer) - terminal.started
                time.sleep(LEAVE_AFTER_S)
            finally:
                terminal.close()
            return took

        return start

    try:
        return in_turn(
            {
                "empty app": first_frame([sys.executable, "-c", EMPTY_APP], b"first paint"),
                "attach RUN": first_frame([*stoker, "attach", str(fake.run.root), "--read-only"]),
                "attach LOG": first_frame([*stoker, "attach", str(log)]),
                "run": first_frame([*stoker, "run", *runs, "--", "sleep", "1"]),
                "runs": first_frame([*stoker, *runs]),
            },
            rounds,
        )
    finally:
        fake.close()


def started(folder: str, *words: str) -> Callable[[], float]:
    """Return a function that runs Python with these arguments and returns the seconds."""
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
