"""What it costs to watch eight processes once a second, against psutil's oneshot and against opening /proc files.

    python bench/supervision.py [--processes 8] [--readings 200] [--rounds 7] [--keep bench/results/supervision.json]

The same eight processes are read again and again without a pause, in turn: stoker's reader (CPU, resident memory,
threads, I/O counters), the same with the machine's own CPU, memory and disks, psutil `Process.oneshot()` with CPU
times, memory and threads on kept objects, the same with I/O counters, and a bare open, read and close of each
`/proc/<pid>/stat`. CPU time of this process; read as once a second.
Goal: at most 2.0 × psutil oneshot, by the bootstrapped 95 % interval of the paired ratio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from bench.common import command_line, in_turn, interval, surroundings, tell
from supervisor.sources.machine import SHM, HostReader, ProcessReader
from supervisor.sources.processes import identify

GOAL = 2.0  # what psutil takes for the same, and once more for identity, I/O counters and the sample itself


def readers(pids: Sequence[int]) -> dict[str, Callable[[], None]]:
    """One function a way: reads all processes once."""
    known = [identify(pid) for pid in pids]
    ours = [ProcessReader(str(one.pid), one) for one in known if one is not None]
    theirs = [psutil.Process(pid) for pid in pids]

    def stoker() -> None:
        for reader in ours:
            assert reader.read().alive

    machine = HostReader((SHM,))

    def with_machine() -> None:
        stoker()
        machine.read()

    def oneshot(*, io: bool = False) -> None:
        for process in theirs:
            with process.oneshot():
                process.cpu_times()
                process.memory_info()
                process.num_threads()
                process.status()
                if io:
                    process.io_counters()

    def bare() -> None:
        for pid in pids:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                file.read()

    return {
        "stoker": stoker,
        "stoker with the machine": with_machine,
        "psutil oneshot": oneshot,
        "psutil oneshot with io": lambda: oneshot(io=True),
        "open and read": bare,
    }


def main() -> int:
    """Measures and prints; 1 when the goal is missed."""
    parser = command_line(__doc__)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--readings", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    sleepers = [
        subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        for _ in range(args.processes)
    ]
    try:
        found = measure(readers([sleeper.pid for sleeper in sleepers]), args.readings, args.rounds)
    finally:
        for sleeper in sleepers:
            sleeper.communicate()
    ratios = [a / b for a, b in zip(found["stoker"], found["psutil oneshot"], strict=True)]
    low, high = interval(ratios, statistics.median)
    result = {
        **surroundings(),
        "psutil": psutil.__version__,
        "processes": args.processes,
        "percent_of_a_core_at_1_hz": {
            who: round(100 * statistics.median(times), 4) for who, times in found.items()
        },
        "ratio_to_psutil_oneshot": round(statistics.median(ratios), 3),
        "interval_95": [round(low, 3), round(high, 3)],
        "goal": GOAL,
        "met": low <= GOAL,
    }
    tell(result, args.keep)
    return 0 if result["met"] else 1


def measure(ways: dict[str, Callable[[], None]], readings: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of one reading of all processes, a value a round."""

    def timed(read: Callable[[], None]) -> Callable[[], float]:
        def once() -> float:
            begin = time.process_time()
            for _ in range(readings):
                read()
            return (time.process_time() - begin) / readings

        return once

    return in_turn({who: timed(read) for who, read in ways.items()}, rounds)


if __name__ == "__main__":
    sys.exit(main())
