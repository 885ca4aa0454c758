"""Memory of a stoker that follows logs for long: it must not grow with what was written, nor with who looked.

A writer appends 10,000 lines a second (training steps, ordinary lines, words never seen before), five times as many
for one second of each minute, and rotates the log by renaming it and by copytruncate in turn. Every second the
observer's resident memory is read from /proc; every ten seconds, how far its series are behind the log.

    python bench/follow.py --minutes 60 --seed 1 [--keep bench/results/follow.json]

With `--training` it is a keeper and a training under torchrun: four ranks write 10,000 lines a second in all, two of them rotate their
logs by renaming, two by copytruncate, and viewers (`attach --no-ui` and the dashboard, in turn) come and go all the while. Descriptors
and threads of the keeper are read too, and each rank's steps must be in the series without a gap.

    python bench/follow.py --training --minutes 15 [--keep bench/results/follow_training.json]

Growth is the median of the last fifth less that of the second fifth (in the first, caches fill). The exit code is 1
when it exceeds `--bound-mib`, when a step never arrives in the series, when descriptors or threads grow, or when stoker fails.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import (
    ROOT,
    command_line,
    cpu_s,
    held_by,
    run_below,
    status,
    steps_in_series,
    surroundings,
    tell,
)
from bench.stage import Terminal
from supervisor.run.paths import RunPaths

NOISY = str(ROOT / "tests" / "integration" / "scripts" / "noisy_training.py")
TICK_S = 0.02
STEP_EVERY = 50
BURST_FACTOR = 5
CATCH_UP_S = 60.0
BOUND_MIB = 16.0


class Writer:
    """Writes the log, and turns it over when it has `rotate_bytes`."""

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
    """Follows for the minutes asked for; 1 when memory grew, or something was not seen."""
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lines", type=int, default=10_000, help="lines a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rotate-mib", type=float, default=128.0)
    parser.add_argument("--training", action="store_true", help="a keeper and its ranks instead of a log")
    parser.add_argument("--bound-mib", type=float, default=BOUND_MIB)
    args = parser.parse_args()
    # A shell's background job has Ctrl-C ignored, and a child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="stoker-follow-") as folder:
        result = (supervise if args.training else follow)(Path(folder), args)
    tell(result, args.keep)
    if args.training:
        return 0 if is_flat(result) and result["growth_mib"] <= args.bound_mib else 1
    whole = result["observer_exit"] == 0 and result["last_step_seen"] == result["last_step_written"]
    return 0 if whole and result["growth_mib"] <= args.bound_mib else 1


def follow(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One observer, one writer."""
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
        "slope_mib_per_hour": round(3600 * slope(resident[fifth:]), 1),
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
    """Resident MiB each second, and how many seconds the series were behind."""
    resident: list[float] = []
    lags: list[float] = []
    begin = time.monotonic()
    for second in seconds(60 * args.minutes):
        rate = args.lines * (BURST_FACTOR if second % 60 == 30 else 1)
        for tick in range(int(1 / TICK_S)):
            writer.write(int(rate * TICK_S))
            # By the clock, not by sleeps: a busy machine makes the writer late, never slower on the whole.
            time.sleep(max(0.0, begin + second + (tick + 1) * TICK_S - time.monotonic()))
        if observer.poll() is not None:
            raise SystemExit(f"the observer ended by itself with {observer.returncode}")
        resident.append(status(observer.pid)["VmRSS"] / 2**20)
        if second % 60 == 0:
            print(
                f"{second // 60} min: {resident[-1]:.1f} MiB, {writer.lines} lines",
                file=sys.stderr,
                flush=True,
            )
        if second % 10 == 5 and (seen := last_step(state)) is not None:
            lags.append((writer.step - seen) * STEP_EVERY / args.lines)
    return resident, lags


def seconds(count: float) -> Iterator[int]:
    yield from range(round(count))


def catch_up(writer: Writer, state: Path) -> float:
    """Seconds until the last step stands in the series."""
    begin = time.monotonic()
    while last_step(state) != writer.step and time.monotonic() - begin < CATCH_UP_S:
        time.sleep(0.05)
    return time.monotonic() - begin


RANKS_OF_TRAINING = 4
ROTATE_MIB = 4.0
VIEWER_EVERY_S = 20
VIEWER_STAYS_S = 12


def supervise(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One keeper, four ranks that rotate their logs, and a viewer every 20 s."""
    environ = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    stoker = [sys.executable, "-m", "supervisor"]
    rates = [str(args.lines // RANKS_OF_TRAINING), str(60 * args.minutes), str(ROTATE_MIB)]
    command = [
        *stoker,
        "run",
        "--no-ui",
        "--nproc-per-node",
        str(RANKS_OF_TRAINING),
        "--python",
        sys.executable,
    ]
    with (folder / "out").open("wb") as out:
        keeper = subprocess.Popen(
            [*command, NOISY, *rates],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    readings: list[tuple[int, int, int]] = []
    viewers = 0
    viewer: subprocess.Popen[bytes] | Terminal | None = None
    used_s = longest_pause_s = 0.0
    try:
        begin = time.monotonic()
        second = 0
        looked = time.time()
        while keeper.poll() is None:
            second += 1
            time.sleep(max(0.0, begin + second - time.monotonic()))
            # By the wall clock: a virtual machine that was stopped meanwhile has no other sign of it.
            longest_pause_s, looked = max(longest_pause_s, time.time() - looked), time.time()
            if (reading := held_by(keeper.pid)) is not None:
                readings.append(reading)
                used_s = max(used_s, cpu_s(keeper.pid))
            if second % VIEWER_EVERY_S == 5 and (run := run_below(folder)) is not None:
                viewer = _viewer([*stoker, "attach"], run, folder, environ, viewers)
                viewers += 1
            elif second % VIEWER_EVERY_S == 5 + VIEWER_STAYS_S and viewer is not None:
                _leave(viewer)
                viewer = None
            if second % 60 == 0:
                print(f"{second // 60} min: {readings[-1]}, {viewers} viewers", file=sys.stderr, flush=True)
    finally:
        if viewer is not None:
            _leave(viewer)
        if keeper.poll() is None:
            keeper.kill()
            keeper.wait()
    run = run_below(folder)
    assert run is not None
    ranks = run.node().attempt(1).rank_folders().values()
    told = [(folder / "stdout.log").read_bytes().split(b"\n")[-2].split() for folder in ranks]
    rss = [reading[2] / 2**20 for reading in readings]
    fifth = len(rss) // 5
    settled = readings[fifth:]
    return {
        **surroundings(),
        "nice": os.nice(0),
        "minutes": args.minutes,
        "ranks": RANKS_OF_TRAINING,
        "lines": sum(int(words[0]) for words in told),
        "rotations": sum(int(words[2]) for words in told),
        "viewers": viewers,
        "rss_mib": {
            "after_a_fifth": round(rss[fifth], 1),
            "end": round(rss[-1], 1),
            "peak": round(max(rss), 1),
        },
        "growth_mib": round(statistics.median(rss[-fifth:]) - statistics.median(rss[fifth : 2 * fifth]), 2),
        "slope_mib_per_hour": round(3600 * slope(rss[fifth:]), 1),
        "descriptors": {
            "after_a_fifth": settled[0][0],
            "end": settled[-1][0],
            "most": max(r[0] for r in settled),
        },
        "threads": {
            "after_a_fifth": settled[0][1],
            "end": settled[-1][1],
            "most": max(r[1] for r in settled),
        },
        "cpu_cores": round(used_s / (60 * args.minutes), 3),
        "longest_pause_s": round(longest_pause_s, 1),
        "steps_lost": steps_lost(run, [int(words[0]) // STEP_EVERY for words in told]),
        "keeper_exit": keeper.returncode,
    }


def is_flat(found: dict[str, Any]) -> bool:
    """Whether the keeper ended well, lost nothing, and held no more at the end than early on; its memory is judged apart."""
    return (
        found["keeper_exit"] == 0
        and not any(found["steps_lost"].values())
        and all(found[what]["end"] <= found[what]["after_a_fifth"] + 3 for what in ("descriptors", "threads"))
    )


def steps_lost(run: RunPaths, written: list[int]) -> dict[str, int]:
    """Of each rank, how many of the steps that it wrote are not in the series."""
    seen = steps_in_series(run)
    return {
        f"rank {rank} ({'copytruncate' if rank % 2 else 'rename'})": count - len(seen.get(str(rank), ()))
        for rank, count in enumerate(written)
    }


def _viewer(
    attach: list[str], run: RunPaths, folder: Path, environ: dict[str, str], number: int
) -> subprocess.Popen[bytes] | Terminal:
    if number % 2:
        return Terminal([*attach, str(run.root)], str(folder))
    with (folder / "viewer").open("wb") as out:
        return subprocess.Popen([*attach, "--no-ui", str(run.root)], env=environ, stdout=out, stderr=out)


def _leave(viewer: subprocess.Popen[bytes] | Terminal) -> None:
    if isinstance(viewer, Terminal):
        viewer.close()
    else:
        viewer.kill()
        viewer.wait()


def last_step(state: Path) -> int | None:
    """The newest step in the observed run's series."""
    for series in state.glob("stoker/kept/*/nodes/0/series/metrics.jsonl"):
        with series.open("rb") as file:
            file.seek(max(0, series.stat().st_size - 4096))
            for line in reversed(file.read().splitlines()):
                try:
                    return int(json.loads(line)["v"]["step"])
                except (ValueError, KeyError):
                    continue
    return None


def slope(values: list[float]) -> float:
    """Least squares, per sample."""
    return statistics.linear_regression(range(len(values)), values).slope


if __name__ == "__main__":
    sys.exit(main())
