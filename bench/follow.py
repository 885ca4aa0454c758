"""Memory of a stoker that follows logs for a long time. It must not grow with the amount of output.

A writer appends 10,000 lines a second (training steps, ordinary lines, words never seen before), five times as many
for one second of each minute, and rotates the log by renaming it and by copytruncate in turn. Every second the
observer's resident memory is read from /proc; every ten seconds, how far its series are behind the log.

    python bench/follow.py --minutes 60 --seed 1 [--keep bench/results/follow.json]

Growth is the median of the last fifth less that of the second fifth (in the first, caches fill). The exit code is 1
when it exceeds `--bound-mib`, when a step never arrives in the series, or when stoker fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, cpu_s, status, surroundings, tell

TICK_S = 0.02
STEP_EVERY = 50
BURST_FACTOR = 5
CATCH_UP_S = 60.0
BOUND_MIB = 16.0


class Writer:
    """Writes the log, and rotates it at `rotate_bytes`."""

    def __init__(self, path: Path, seed: int, rotate_bytes: int) -> None:
        self.path = path
        self.lines = self.step = self.bytes = self.rotations = 0
        self._rng = random.Random(seed)
        self._rotate_bytes = rotate_bytes
        self._file = path.open("ab", buffering=0)

    def write(self, count: int) -> None:
        """Append so many lines."""
        data = "".join(self._line() for _ in range(count)).encode()
        self._file.write(data)
        self.bytes += len(data)
        if self._file.tell() >= self._rotate_bytes:
            self._rotate()

    def close(self) -> None:
        self._file.close()

    def _line(self) -> str:
        self.lines += 1
        draw = self._rng.random
        if self.lines % STEP_EVERY == 0:
            self.step += 1
            return f"[rank0] step {self.step}/100000000 loss {2 + draw():.4f} lr {draw() / 1e3:.3e} tok/s {1e5 * draw():.0f}\n"
        match self.lines % 10:
            case 1:
                return f"DEBUG bucket {self._rng.getrandbits(64):016x} of {self._rng.getrandbits(64):016x} flushed\n"
            case 2 | 3:
                return f"2026-11-21 12:00:{self.lines % 60:02d},{self.lines % 1000:03d} INFO data.loader: shard {self.lines % 4096} read in {draw() * 50:.2f} ms\n"
            case 4:
                return f"\x1b[32mINFO\x1b[0m rank {self.lines % 8} batch {self.lines % 4096} queued, {self.lines % 17} waiting\n"
            case _:
                return f"worker {self.lines % 8} took sample {self.lines} and put it where samples of its length go\n"

    def _rotate(self) -> None:
        old = self.path.with_name(self.path.name + ".1")
        if self.rotations % 2:
            shutil.copyfile(self.path, old)
            os.truncate(self.path, 0)
        else:
            self.path.rename(old)
            self._file.close()
            self._file = self.path.open("ab", buffering=0)
        self.rotations += 1


def main() -> int:
    """Follow for the given minutes. Return 1 if memory grew or a step was missed."""
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lines", type=int, default=10_000, help="lines a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rotate-mib", type=float, default=128.0)
    parser.add_argument("--bound-mib", type=float, default=BOUND_MIB)
    args = parser.parse_args()
    # A shell's background job has Ctrl-C ignored, and a child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="stoker-follow-") as folder:
        result = follow(Path(folder), args)
    tell(result, args.keep)
    whole = result["observer_exit"] == 0 and result["last_step_seen"] == result["last_step_written"]
    return 0 if whole and result["growth_mib"] <= args.bound_mib else 1


def follow(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run one observer and one writer, and return the figures."""
    writer = Writer(folder / "train.log", args.seed, int(args.rotate_mib * (1 << 20)))
    writer.write(args.lines)
    environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "supervisor", "attach", str(writer.path), "--no-ui", "--json", "--keep"]
    with (folder / "out").open("wb") as out:
        observer = subprocess.Popen(command, env=environ, stdout=out, stderr=subprocess.STDOUT)
    try:
        resident, lags = watch(observer, writer, folder / "state", args)
        behind_s = catch_up(writer, folder / "state")
        used_s = cpu_s(observer.pid)
        observer.send_signal(signal.SIGINT)
        code = observer.wait(CATCH_UP_S)
    finally:
        if observer.poll() is None:
            observer.kill()
            observer.wait()
        writer.close()
    fifth = len(resident) // 5
    later = statistics.linear_regression(range(len(resident) - fifth), resident[fifth:])
    growth = statistics.median(resident[-fifth:]) - statistics.median(resident[fifth : 2 * fifth])
    return {
        **surroundings(),
        "nice": os.nice(0),
        "minutes": args.minutes,
        "seed": args.seed,
        "lines_per_s": round(writer.lines / (60 * args.minutes)),
        "lines": writer.lines,
        "log_mib": round(writer.bytes / (1 << 20)),
        "rotations": writer.rotations,
        "rss_mib": {
            "after_a_fifth": round(resident[fifth], 1),
            "end": round(resident[-1], 1),
            "peak": round(max(resident), 1),
        },
        "growth_mib": round(growth, 2),
        "slope_mib_per_hour": round(3600 * later.slope, 1),
        "cpu_cores": round(used_s / (60 * args.minutes), 3),
        "lag_s": {"median": round(statistics.median(lags), 2), "most": round(max(lags), 2)} if lags else None,
        "caught_up_after_s": round(behind_s, 2),
        "last_step_written": writer.step,
        "last_step_seen": last_step(folder / "state"),
        "observer_exit": code,
    }


def watch(
    observer: subprocess.Popen[bytes], writer: Writer, state: Path, args: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """Return resident MiB for each second, and by how many seconds the series lagged."""
    resident: list[float] = []
    lags: list[float] = []
    begin = time.monotonic()
    for second in range(round(60 * args.minutes)):
        rate = args.lines * (BURST_FACTOR if second % 60 == 30 else 1)
        for tick in range(int(1 / TICK_S)):
            writer.write(int(rate * TICK_S))
            # By the clock, not by sleeps: a busy machine makes the writer late, never slower on the whole.
            time.sleep(max(0.0, begin + second + (tick + 1) * TICK_S - time.monotonic()))
        if observer.poll() is not None:
            raise SystemExit(f"the observer ended by itself with {observer.returncode}")
        resident.append(status(observer.pid)["VmRSS"] / 2**20)
        if second % 60 == 0:
            done = f"{second // 60} min: {resident[-1]:.1f} MiB, {writer.lines} lines"
            print(done, file=sys.stderr, flush=True)
        if second % 10 == 5 and (seen := last_step(state)) is not None:
            lags.append((writer.step - seen) * STEP_EVERY / args.lines)
    return resident, lags


def catch_up(writer: Writer, state: Path) -> float:
    """Return the seconds until the last step is in the series."""
    begin = time.monotonic()
    while last_step(state) != writer.step and time.monotonic() - begin < CATCH_UP_S:
        time.sleep(0.05)
    return time.monotonic() - begin


def last_step(state: Path) -> int | None:
    """Return the newest step in the observed run's series."""
    for series in state.glob("stoker/kept/*/nodes/0/series/metrics.jsonl"):
        with series.open("rb") as file:
            file.seek(max(0, series.stat().st_size - 4096))
            for line in reversed(file.read().splitlines()):
                try:
                    return int(json.loads(line)["v"]["step"])
                except (ValueError, KeyError):
                    continue
    return None


if __name__ == "__main__":
    sys.exit(main())
