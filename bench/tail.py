"""Following logs: from append to callback, and idle cost, against `tail -F` and a bare poll.

    python bench/tail.py [--files 200] [--appends 200] [--rounds 9] [--idle 8] [--keep bench/results/tail.json]

Timed is the way from just before write(2) of a line to the first instruction of the function that a listener calls with it, by the
machine's monotonic clock. A listener is a process of its own whose main thread sleeps and whose second thread waits and calls:

- stoker: a `Tailer`;
- `tail -F`: one tail(1) for all files, whose pipe the thread reads, as every program does that hears of lines by tail;
- bare loop: read(2) of an inotify descriptor, pread(2) of the open file that these bytes are known for, the call: the least
  that a Python process can do, with no look at truncation, rotation, other threads' wishes or lines.

Each follows files of its own, and an append touches one of them: with common files all would wake at once and wait for each other's
processor, and who is woken first would win (0.7 to 1.6 for the same code). They are asked in turn, in an order that is drawn anew each time.
Prints milliseconds (p50, p90), the ratios of the rounds' medians with their 95 % intervals, and CPU shares.
Goals: p50 at most 1.2 × `tail -F`, idle CPU at most 1.5 × a bare 250 ms poll.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, interval, surroundings, tell

PAUSE_S = 0.01
# The mask is stoker's: changes of content, and what comes and goes in the folder.
LISTEN = """
import ctypes, os, subprocess, sys, threading, time
sys.path.insert(0, sys.argv[1])
paths, heard = sys.argv[3:], lambda: os.write(1, b"%d\\n" % time.monotonic_ns())
if sys.argv[2] == "stoker":
    from supervisor.sources.tail.tailer import Tailer
    tailer = Tailer(threading.Event(), lambda batch: heard())
    for path in paths:
        tailer.add(path, path)
    tailer.start()
    sys.stdin.read()
    tailer.close()
elif sys.argv[2] == "tail -F":
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
else:
    libc = ctypes.CDLL(None)
    events = libc.inotify_init1(os.O_CLOEXEC)
    libc.inotify_add_watch(events, os.path.dirname(paths[0]).encode(), 0x3C2)
    files = {os.path.basename(path).encode(): os.open(path, os.O_RDONLY) for path in paths}
    known, offsets = {}, dict.fromkeys(files.values(), 0)
    def follow():
        while True:
            raw = os.read(events, 8192)
            fd = known.get(raw)
            if fd is None:
                fd = known[raw] = files[raw[16:].rstrip(b"\\0")]
            data = os.pread(fd, 8192, offsets[fd])
            offsets[fd] += len(data)
            heard()
    threading.Thread(target=follow, daemon=True).start()
    sys.stdin.read()
    os._exit(0)
"""
LISTENERS = ("stoker", "tail -F", "bare loop")


def latencies(folder: Path, files: int, appends: int, rounds: int) -> dict[str, list[list[float]]]:
    """Milliseconds from append to callback, a list a round; the first round warms up and is thrown away."""
    logs = {
        who: [folder / str(place) / f"{n}.log" for n in range(files)] for place, who in enumerate(LISTENERS)
    }
    for paths in logs.values():
        paths[0].parent.mkdir()
        for path in paths:
            path.touch()
    found: dict[str, list[list[float]]] = {who: [] for who in LISTENERS}
    listeners = {
        who: subprocess.Popen(
            [sys.executable, "-c", LISTEN, str(ROOT), who, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for who, paths in logs.items()
    }
    time.sleep(2.0)
    draw = random.Random(0)
    try:
        for number in range(rounds + 1):
            times: dict[str, list[float]] = {who: [] for who in LISTENERS}
            for append in range(appends):
                for who in draw.sample(LISTENERS, len(LISTENERS)):
                    times[who].append(heard_after(logs[who][append % files], listeners[who]))
                    time.sleep(PAUSE_S)
            for who in LISTENERS if number else ():
                found[who].append(times[who])
    finally:
        for listener in listeners.values():
            listener.communicate(timeout=10)
    return found


def heard_after(path: Path, listener: subprocess.Popen[bytes]) -> float:
    """Milliseconds until a listener heard of a line."""
    assert listener.stdout is not None
    with path.open("ab", buffering=0) as out:
        start = time.monotonic_ns()
        out.write(b"a line of a log\n")
    return (int(listener.stdout.readline()) - start) / 1e6


IDLE = """
import os, resource, sys, threading, time
sys.path.insert(0, sys.argv[1])
paths = [os.path.join(sys.argv[2], name) for name in os.listdir(sys.argv[2])]
if sys.argv[3] == "stoker":
    from supervisor.sources.tail.tailer import Tailer
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


def ratio(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> list[float]:
    """How many times as long, by the median of the rounds, and its 95 % interval."""
    paired = [
        statistics.median(one) / statistics.median(other) for one, other in zip(above, below, strict=True)
    ]
    return [round(value, 2) for value in (statistics.median(paired), *interval(paired, statistics.median))]


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--appends", type=int, default=200, help="of each listener's files, a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--idle", type=float, default=8.0, help="seconds, three times")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = latencies(Path(name), args.files, args.appends, args.rounds)
        shares = idle(Path(name) / "0", args.idle, 3)
    flat = {who: [value for times in rounds for value in times] for who, rounds in found.items()}
    report = {
        **surroundings(),
        "p50_ms": {who: round(statistics.median(values), 3) for who, values in flat.items()},
        "p90_ms": {who: round(statistics.quantiles(values, n=10)[-1], 3) for who, values in flat.items()},
        "ratio_p50_to_tail": ratio(found["stoker"], found["tail -F"]),
        "ratio_p50_to_tail_bare_loop": ratio(found["bare loop"], found["tail -F"]),
        "idle_cpu_percent": {who: round(share * 100, 3) for who, share in shares.items()},
        "ratio_idle_to_poll": round(shares["stoker"] / shares["poll"], 2),
    }
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
