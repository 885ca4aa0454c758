"""Crash and restart, over and over, under one keeper: does anything stay behind or grow?

Each cycle a tiny script makes one step, is killed, and is restarted. After each cycle the keeper's descriptors,
threads and memory are read; at the end the machine's processes and shared memory are compared with the start.

    python bench/cycles.py --cycles 200 [--keep bench/results/cycles.json]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, held_by, surroundings, tell, with_mark

MARK = "STOKER_CYCLES_MARK"
SCRIPT = """
import os, signal, subprocess, sys
from multiprocessing import shared_memory
place, last = sys.argv[1], int(sys.argv[2])
done = int(open(place).read()) if os.path.exists(place) else 0
block = shared_memory.SharedMemory(create=True, size=4096)
child = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
done += 1
with open(place, "w") as file:
    file.write(str(done))
print(f"step {done}/{last} loss: {1 / done:.4f}", flush=True)
block.close()
block.unlink()
if done < last:
    os.kill(os.getpid(), signal.SIGSEGV)
child.communicate(b"")
"""
SETTINGS = """
[policy]
flap_max = 100000
[policy.worker_crash]
delay_s = 0
"""


def run(cycles: int, folder: Path) -> dict[str, Any]:
    """One run of `cycles` crashes in `folder`; what was left and what the keeper held."""
    (folder / "job.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "stoker.toml").write_text(SETTINGS, encoding="utf-8")
    mark = uuid.uuid4().hex
    env = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    shm_before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-m", "supervisor", "run", "--no-ui", "--resume-knob", "--resume=auto", "--"]
    command += [sys.executable, "-S", str(folder / "job.py"), str(folder / "done"), str(cycles + 1)]
    began = time.monotonic()
    with (folder / "out.log").open("wb") as out:
        keeper = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)
        readings: list[tuple[int, int, int, int]] = []
        seen = 0
        while keeper.poll() is None:
            done = _read_number(folder / "done")
            if done > seen:
                seen = done
                found = held_by(keeper.pid)
                if found is not None:
                    readings.append((done, *found))
            time.sleep(0.05)
    took_s = time.monotonic() - began
    deadline = time.monotonic() + 10.0
    while (left := with_mark(MARK, mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    settled = readings[len(readings) // 4 :]  # imports and caches of the first cycles are not a leak
    rss = [reading[3] for reading in settled]
    third = max(len(rss) // 3, 1)
    return {
        "cycles": cycles,
        "exit_code": keeper.returncode,
        "completed": _read_number(folder / "done"),
        "seconds_a_cycle": round(took_s / max(cycles, 1), 3),
        "processes_left": len(left),
        "shared_memory_left": sorted(set(os.listdir("/dev/shm")) - shm_before),
        "descriptors_first_last": [settled[0][1], settled[-1][1]],
        "descriptors_most": max(reading[1] for reading in settled),
        "threads_first_last": [settled[0][2], settled[-1][2]],
        "threads_most": max(reading[2] for reading in settled),
        "rss_mib_early": round(statistics.median(rss[:third]) / 2**20, 1),
        "rss_mib_late": round(statistics.median(rss[-third:]) / 2**20, 1),
    }


def _read_number(path: Path) -> int:
    try:
        return int(path.read_text() or 0)
    except (OSError, ValueError):
        return 0


def main() -> int:
    """Print the result; 1 where something was left or grew."""
    parser = command_line(__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(args.cycles, Path(folder))
    tell(result | surroundings(), args.keep)
    return 0 if clean(result) else 1


def clean(result: dict[str, Any]) -> bool:
    """Whether nothing was left behind and nothing grew: 5 % and 3 MiB of memory are the noise of an allocator."""
    first, last = result["descriptors_first_last"]
    return bool(
        result["exit_code"] == 0
        and not result["processes_left"]
        and not result["shared_memory_left"]
        and last <= first + 8
        and result["rss_mib_late"] <= result["rss_mib_early"] * 1.05 + 3.0
    )


if __name__ == "__main__":
    sys.exit(main())
