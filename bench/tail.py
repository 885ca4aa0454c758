"""Following logs: CPU under a flood and at rest, and the time from append to callback.

    python bench/tail.py [--files 64] [--flood 8] [--idle 8] [--rounds 5] [--against CHECKOUT] [--keep bench/results/tail.json]

A follower is a process of its own with a `Tailer` over all files, in folders of two files as torchrun makes them. Measured are its CPU
seconds while a writer appends lines to all files in turn, one write(2) a line and as quickly as it can (`flood`); its CPU share while
nothing is written, beside a bare poll that calls stat(2) for each file every 250 ms (`idle`); and milliseconds from just before a write
to the callback (`append`). With `--against`, the tailer of another checkout is measured too, in turn with this one.
Goals: not a line lost; idle CPU at most 2 × the bare poll; with `--against` the checkout before a change: flood at most 1.5 ×.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, in_turn, interval, surroundings, tell

LINE = b"INFO worker 3 took sample 123456 and put it where samples of its length go\n"
# Follows every file below a folder until its input ends; answers "mark" with the CPU seconds, lines and callbacks so far.
FOLLOW = """
import json, os, sys, threading, time
sys.path.insert(0, sys.argv[1])
paths = sorted(os.path.join(place, name) for place, _, names in os.walk(sys.argv[2]) for name in names)
seen, appends, calls = 0, sys.argv[3] == "append", 0
def take(batch):
    global seen, calls
    seen += len(batch.lines)
    calls += 1
    if appends:
        os.write(1, b"%d\\n" % time.monotonic_ns())
if sys.argv[3] == "poll":
    def poll():
        while True:
            for path in paths:
                os.stat(path)
            time.sleep(0.25)
    threading.Thread(target=poll, daemon=True).start()
else:
    from supervisor.sources.tail.tailer import Tailer
    tailer = Tailer(threading.Event(), take)
    for path in paths:
        tailer.add(path, path)
    tailer.start()
for _ in sys.stdin:
    print(json.dumps([time.process_time(), seen, calls, threading.active_count()]), flush=True)
os._exit(0)
"""


class Follower:
    """A following process."""

    def __init__(self, checkout: Path, folder: Path, way: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FOLLOW, str(checkout), str(folder), way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.mark()
        time.sleep(1.5)

    def mark(self) -> tuple[float, int, int, int]:
        """CPU seconds, lines, callbacks and threads up to now."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"mark\n")
        self._process.stdin.flush()
        cpu_s, lines, calls, threads = json.loads(self.line())
        return cpu_s, lines, calls, threads

    def line(self) -> bytes:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=10)


def make_files(folder: Path, count: int) -> list[Path]:
    """Empty logs, two a folder."""
    paths = [
        folder / str(number // 2) / f"std{'out' if number % 2 else 'err'}.log" for number in range(count)
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def flood(checkout: Path, files: int, seconds: float) -> dict[str, float]:
    """CPU seconds for a flood of lines in all files."""
    with tempfile.TemporaryDirectory() as name:
        outs = [path.open("ab", buffering=0) for path in make_files(Path(name), files)]
        follower = Follower(checkout, Path(name), "follow")
        before_s, *_ = follower.mark()
        end = time.monotonic() + seconds
        written = 0
        while time.monotonic() < end:
            for out in outs:
                out.write(LINE)
            written += files
        deadline = time.monotonic() + 30
        while (seen := follower.mark())[1] < written and time.monotonic() < deadline:
            time.sleep(0.1)
        follower.close()
        for out in outs:
            out.close()
    cpu_s, lines, calls, threads = seen
    return {
        "cpu_us_per_line": (cpu_s - before_s) / written * 1e6,
        "writes_per_s": written / seconds,
        "lost": written - lines,
        "callbacks_per_s": calls / seconds,
        "threads_after": threads,
    }


def idle(checkout: Path, files: int, seconds: float, way: str) -> dict[str, float]:
    """The share of a core while nothing is written."""
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name), files)
        follower = Follower(checkout, Path(name), way)
        before_s, *_ = follower.mark()
        time.sleep(seconds)
        after_s, _, _, threads = follower.mark()
        follower.close()
    return {"cpu_percent": (after_s - before_s) / seconds * 100, "threads": threads}


def append(checkout: Path, files: int, count: int = 100) -> dict[str, float]:
    """Milliseconds from append to callback, one file after another."""
    with tempfile.TemporaryDirectory() as name:
        paths = make_files(Path(name), files)
        follower = Follower(checkout, Path(name), "append")
        took_ms = []
        for number in range(count):
            with paths[number % files].open("ab", buffering=0) as out:
                start = time.monotonic_ns()
                out.write(LINE)
                took_ms.append((int(follower.line()) - start) / 1e6)
            time.sleep(0.01)
        follower.close()
    return {"p50_ms": statistics.median(took_ms), "p90_ms": statistics.quantiles(took_ms, n=10)[-1]}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Each number's median over the rounds; of what was lost, the sum."""
    return {
        name: round((sum if name == "lost" else statistics.median)([found[name] for found in rounds]), 3)
        for name in rounds[0]
    }


def ratio(above: list[dict[str, float]], below: list[dict[str, float]], name: str) -> list[float]:
    """How many times as much, by the median of the rounds, and its 95 % interval."""
    paired = [one[name] / max(other[name], 1e-9) for one, other in zip(above, below, strict=True)]
    return [round(value, 2) for value in (statistics.median(paired), *interval(paired, statistics.median))]


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--flood", type=float, default=8.0, help="seconds of flood, a round")
    parser.add_argument("--idle", type=float, default=8.0, help="seconds of rest, a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="measure this checkout's tailer too")
    args = parser.parse_args()
    checkouts = {"stoker": ROOT} | ({"against": args.against.resolve()} if args.against else {})
    kinds: dict[str, dict[str, Callable[[], dict[str, float]]]] = {
        "flood": {who: partial(flood, at, args.files, args.flood) for who, at in checkouts.items()},
        "append": {who: partial(append, at, args.files) for who, at in checkouts.items()},
        "idle": {who: partial(idle, at, args.files, args.idle, "follow") for who, at in checkouts.items()},
    }
    kinds["idle"]["bare poll"] = partial(idle, ROOT, args.files, args.idle, "poll")
    found = {
        f"{kind}: {who}": rounds
        for kind, ways in kinds.items()
        for who, rounds in in_turn(ways, args.rounds).items()
    }
    report: dict[str, object] = {**surroundings(), "files": args.files, "rounds": args.rounds}
    report |= {name: medians(rounds) for name, rounds in found.items()}
    report["ratio_idle_to_poll"] = ratio(found["idle: stoker"], found["idle: bare poll"], "cpu_percent")
    if args.against:
        report["ratio_flood_to_against"] = ratio(
            found["flood: stoker"], found["flood: against"], "cpu_us_per_line"
        )
    tell(report, args.keep)
    return int(medians(found["flood: stoker"])["lost"] > 0)


if __name__ == "__main__":
    sys.exit(main())
