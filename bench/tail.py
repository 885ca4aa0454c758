"""Following logs: from append to callback, and idle cost, against `tail -F` and a bare poll.

    python bench/tail.py [--files 200] [--appends 600] [--idle 8] [--keep bench/results/tail.json]

Prints milliseconds (p50, p90) and CPU shares. Goals: p50 at most 1.2 × `tail -F`, idle CPU at most 1.5 × a bare 250 ms poll.
Wall time, so run it on a quiet machine; both hear of the same appends, each in a process of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, surroundings, tell

PAUSE_S = 0.01
# Each listener is a process of its own, as tail is: it prints when it heard of a line, by the machine's monotonic clock.
LISTEN = """
import os, subprocess, sys, threading, time
sys.path.insert(0, sys.argv[1])
paths, heard = sys.argv[3:], lambda: os.write(1, b"%d\\n" % time.monotonic_ns())
if sys.argv[2] == "stoker":
    from supervisor.sources.tail import Tailer
    stop = threading.Event()
    tailer = Tailer(stop, lambda batch: heard())
    for path in paths:
        tailer.add(path, path)
    tailer.start()
    sys.stdin.read()
    stop.set()
    tailer.close()
else:
    tail = subprocess.Popen(
        ["tail", "-q", "-n", "0", "-F", *paths], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    def read():
        while os.read(tail.stdout.fileno(), 4096):
            heard()
    reader = threading.Thread(target=read)
    reader.start()
    sys.stdin.read()
    tail.terminate()
    tail.wait()
    reader.join()
"""


def latencies(folder: Path, files: int, appends: int) -> dict[str, list[float]]:
    """Milliseconds from append to callback: both hear of every line, and take turns in being asked first."""
    paths = [str(folder / f"{n}.log") for n in range(files)]
    for path in paths:
        Path(path).touch()
    found: dict[str, list[float]] = {"stoker": [], "tail -F": []}
    listeners = {
        who: subprocess.Popen(
            [sys.executable, "-c", LISTEN, str(ROOT), who, *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for who in found
    }
    time.sleep(2.0)
    try:
        for number in range(appends):
            with open(paths[number % files], "ab", buffering=0) as out:
                start = time.monotonic_ns()
                out.write(b"a line of a log\n")
            for who, listener in listeners.items():
                assert listener.stdout is not None
                found[who].append((int(listener.stdout.readline()) - start) / 1e6)
            time.sleep(PAUSE_S)
    finally:
        for listener in listeners.values():
            listener.communicate(timeout=10)
    return found


IDLE = """
import os, resource, sys, threading, time
sys.path.insert(0, sys.argv[1])
paths = [os.path.join(sys.argv[2], name) for name in os.listdir(sys.argv[2])]
if sys.argv[3] == "stoker":
    from supervisor.sources.tail import Tailer
    stop = threading.Event()
    tailer = Tailer(stop, lambda batch: None)
    for path in paths:
        tailer.add(path, path)
    tailer.start()
else:
    def poll():
        while True:
            for path in paths:
                os.stat(path)
            time.sleep(0.25)
    threading.Thread(target=poll, daemon=True).start()
time.sleep(1.0)
before = time.process_time()
time.sleep(float(sys.argv[4]))
print(time.process_time() - before)
os._exit(0)
"""


def idle(folder: Path, seconds: float, rounds: int) -> dict[str, float]:
    used: dict[str, list[float]] = {"stoker": [], "poll": []}
    for _ in range(rounds):
        for who, shares in used.items():
            command = [sys.executable, "-c", IDLE, str(ROOT), str(folder), who, str(seconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            shares.append(float(done.stdout) / seconds)
    return {who: statistics.median(values) for who, values in used.items()}


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--appends", type=int, default=600)
    parser.add_argument("--idle", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = latencies(Path(name), args.files, args.appends)
        shares = idle(Path(name), args.idle, args.rounds)
    report = {
        **surroundings(),
        "p50_ms": {who: round(statistics.median(values), 3) for who, values in found.items()},
        "p90_ms": {who: round(statistics.quantiles(values, n=10)[-1], 3) for who, values in found.items()},
        "ratio_p50_to_tail": round(
            statistics.median(found["stoker"]) / statistics.median(found["tail -F"]), 2
        ),
        "idle_cpu_percent": {who: round(share * 100, 3) for who, share in shares.items()},
        "ratio_idle_to_poll": round(shares["stoker"] / shares["poll"], 2),
    }
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
