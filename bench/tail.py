"""Following logs: from append to callback, and idle cost, against `tail -F` and a bare poll.

    python bench/tail.py [--files 200] [--appends 150] [--idle 8]

Prints milliseconds (p50, p90) and CPU shares. Goals: p50 at most 1.2 × `tail -F`, idle CPU at most 1.5 × a bare 250 ms poll.
Wall time, so run it on a quiet machine; stoker and tail take turns, append by append.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAUSE_S = 0.01


class OneTail:
    """`tail -F` on all files; a thread notes when a line comes out."""

    def __init__(self, paths: list[Path]) -> None:
        self.seen: queue.Queue[float] = queue.Queue()
        self.process = subprocess.Popen(
            ["tail", "-q", "-n", "0", "-F", *map(str, paths)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        while os.read(fd, 4096):
            self.seen.put(time.perf_counter())

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(5)
        self._thread.join(5)


def latencies(folder: Path, files: int, appends: int) -> dict[str, list[float]]:
    from supervisor.sources.tail import Batch, Tailer

    paths = [folder / f"{n}.log" for n in range(files)]
    for path in paths:
        path.touch()
    ours: queue.Queue[float] = queue.Queue()
    stop = threading.Event()

    def heard(_batch: Batch) -> None:
        ours.put(time.perf_counter())

    tailer = Tailer(stop, heard)
    for path in paths:
        tailer.add(path, path.name)
    tailer.start()
    found: dict[str, list[float]] = {"stoker": [], "tail -F": []}
    theirs = OneTail(paths)
    time.sleep(1.0)
    # One of them at a time is stopped while the other is measured, so that neither delays the other.
    for name, seen in (("stoker", ours), ("tail -F", theirs.seen)) * 2:
        if name == "tail -F":
            tailer.drain(5)
            stop.set()
            tailer.close()
        else:
            theirs.process.send_signal(19)  # SIGSTOP
        for number in range(appends // 2):
            path = paths[number % files]
            with path.open("ab", buffering=0) as out:
                while not seen.empty():
                    seen.get()
                start = time.perf_counter()
                out.write(b"a line of a log\n")
                found[name].append((seen.get(timeout=2) - start) * 1000)
            time.sleep(PAUSE_S)
        if name == "tail -F":
            stop = threading.Event()
            tailer = Tailer(stop, heard)
            for path in paths:
                tailer.add(path, path.name, offset=path.stat().st_size)
            tailer.start()
        else:
            theirs.process.send_signal(18)  # SIGCONT
        time.sleep(0.5)
    stop.set()
    tailer.close()
    theirs.close()
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--appends", type=int, default=150)
    parser.add_argument("--idle", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as name:
        found = latencies(Path(name), args.files, args.appends)
        shares = idle(Path(name), args.idle, args.rounds)
    report = {
        "p50_ms": {who: round(statistics.median(values), 3) for who, values in found.items()},
        "p90_ms": {who: round(statistics.quantiles(values, n=10)[-1], 3) for who, values in found.items()},
        "ratio_p50_to_tail": round(
            statistics.median(found["stoker"]) / statistics.median(found["tail -F"]), 2
        ),
        "idle_cpu_percent": {who: round(share * 100, 3) for who, share in shares.items()},
        "ratio_idle_to_poll": round(shares["stoker"] / shares["poll"], 2),
    }
    print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
