"""The dashboard's cost, as ratios within one run: CPU, bytes, and the delay of a key.

    python bench/terminal.py [--rounds 5] [--keep bench/results/terminal.json]

Shares of a core and bytes at 120×40 with data once and four times a second, interleaved, medians. Goals:
- 8 GPUs and 64 ranks: at most 2 × the same dashboard with 2 ranks;
- a key's way to the screen while 10,000 lines a second arrive: p99 at most 3 × an empty Textual app's. A key within a pane
  against one that changes a word, the help over the dashboard against a help over nothing: a screen that opens costs any app
  some twenty milliseconds.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Ratio, command_line, in_turn, ratios, surroundings, tell
from bench.stage import EMPTY_APP, LINES_PER_S, STOKER_APP, FakeRun, Terminal, every, p99

SETTLE_S = 3.0
WINDOW_S = 5.0
RATIOS = (
    Ratio("cpu, 8 GPUs and 64 ranks / 2 ranks", "stoker cpu many", "stoker cpu 1 Hz", 2.0),
    Ratio("key p99 under load / empty app", "stoker key p99", "empty key p99", 3.0),
    Ratio("help p99 under load / empty app with a help", "stoker help p99", "empty help p99", 3.0),
)
# Presses of one key in one round, in turns of the empty app, the dashboard, the empty app, ...
BLOCKS = 5
PRESSES = 20
PAUSE_S = 0.05
POUR_S = 0.05


def stoker_cost(folder: str, hz: float, ranks: int, gpus: int) -> tuple[float, float]:
    """Return the dashboard's share of a core and bytes per second."""
    root = Path(tempfile.mkdtemp(dir=folder)) / "20261121-0000-bench-run"
    fake = FakeRun(root, ranks=ranks, gpus=gpus)
    try:
        with every(1 / hz, lambda: fake.advance(time.time())):
            return cost([sys.executable, "-c", STOKER_APP, str(root)], folder, b"stepping")
    finally:
        fake.close()
        shutil.rmtree(root.parent, ignore_errors=True)


def cost(argv: list[str], folder: str, ready: bytes) -> tuple[float, float]:
    """Return a program's share of a core and bytes per second, after it has settled."""
    terminal = Terminal(argv, folder)
    try:
        terminal.wait_for(ready)
        time.sleep(SETTLE_S)
        cpu, sent, start = terminal.cpu_s(), terminal.bytes, time.monotonic()
        time.sleep(WINDOW_S)
        took = time.monotonic() - start
        return (terminal.cpu_s() - cpu) / took, (terminal.bytes - sent) / took
    finally:
        terminal.close()


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        turns = itertools.count()
        rounds = in_turn({"dashboard": lambda: one_round(folder, next(turns))}, args.rounds)["dashboard"]
    found = {name: [values[name] for values in rounds] for name in rounds[0]}
    rows = ratios(found, RATIOS)
    medians = {name: round(statistics.median(values), 4) for name, values in found.items()}
    tell({"rounds": args.rounds, **surroundings(), "medians": medians, "ratios": rows}, args.keep)
    return int(any(row["missed"] for row in rows.values()))


def one_round(folder: str, turn: int) -> dict[str, float]:
    """Return the values of one round."""
    found = keys(folder, turn)
    for name, hz, ranks, gpus in (("1 Hz", 1.0, 2, 2), ("4 Hz", 4.0, 2, 2), ("many", 1.0, 64, 8)):
        cpu, sent = stoker_cost(folder, hz, ranks, gpus)
        found |= {f"stoker cpu {name}": cpu, f"stoker bytes {name}": sent}
    return found


def bare_keys(terminal: Terminal, first: int) -> list[float]:
    """Return the seconds from a key to its effect in the empty app, which counts presses from `first`."""
    times = []
    for number in range(first, first + PRESSES):
        sent = terminal.press(b"x")
        times.append(terminal.wait_for(f"{number:04d}".encode()) - sent)
        time.sleep(PAUSE_S)
    return times


def pane_keys(terminal: Terminal) -> list[float]:
    """Return the same for a key in the dashboard that freezes and unfreezes the log."""
    times = []
    for number in range(PRESSES):
        sent = terminal.press(b" ")
        times.append(terminal.wait_for(b"following" if number % 2 else b"frozen") - sent)
        time.sleep(PAUSE_S)
    return times


def help_keys(terminal: Terminal, beneath: bytes) -> list[float]:
    """Return the same for the help screen, which shows `beneath` again once it is closed."""
    times = []
    for _ in range(PRESSES):
        sent = terminal.press(b"?")
        times.append(terminal.wait_for(b"Esc closes") - sent)
        terminal.press(b"?")
        terminal.wait_for(beneath)  # all is painted again
        time.sleep(PAUSE_S)
    return times


def keys(folder: str, turn: int) -> dict[str, float]:
    """Return the delays of keys, in turn in an empty app and in the dashboard under load."""
    fake = FakeRun(Path(folder, f"keys-{turn}", "20261121-0000-keys-run"), ranks=2, gpus=2)
    count = 0

    def pour() -> None:
        nonlocal count
        lines = range(count, count + round(LINES_PER_S * POUR_S))
        with fake.logs[count % 2].open("a") as file:
            file.write("".join(f"step {n} | loss 2.{n % 10_000:04d} | lr 3e-4\n" for n in lines))
        count += len(lines) + 1

    bare: list[float] = []
    inside: list[float] = []
    over: list[float] = []
    bare_over: list[float] = []
    empty = Terminal([sys.executable, "-c", EMPTY_APP], folder)
    dashboard = Terminal([sys.executable, "-c", STOKER_APP, str(fake.run.root)], folder)
    try:
        empty.wait_for(b"first paint")
        dashboard.wait_for(b"stepping")
        for block in range(BLOCKS):
            time.sleep(1.0)
            bare += bare_keys(empty, block * PRESSES + 1)
            bare_over += help_keys(empty, b"pressed")
            with every(POUR_S, pour), every(1.0, lambda: fake.advance(time.time())):
                time.sleep(1.0)
                inside += pane_keys(dashboard)
                over += help_keys(dashboard, b"following")
    finally:
        empty.close()
        dashboard.close()
        fake.close()
    taken = {"empty key": bare, "stoker key": inside, "empty help": bare_over, "stoker help": over}
    middles = {f"{name} p50": statistics.median(times) for name, times in taken.items()}
    return middles | {f"{name} p99": p99(times) for name, times in taken.items()}


if __name__ == "__main__":
    sys.exit(main())
