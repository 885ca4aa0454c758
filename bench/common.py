"""Shared parts of the benches: command line, interleaved rounds, intervals and ratios, kept results, /proc.

A bench is a script, run as ``python bench/NAME.py``: it puts the repository before its own folder on the path first,
because bench/ has a `trainer.py` too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from supervisor.run.paths import RunPaths
from supervisor.run.series import JOB_KEY, METRICS, RANKS, SeriesReader

ROOT = Path(__file__).resolve().parents[1]
TRAINER = ROOT / "trainer" / "__main__.py"
# A launch without anybody between: torchrun does not restart by itself.
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--max-restarts=0", "--nproc-per-node=2")

T = TypeVar("T")


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the bench's docstring unchanged and has ``--keep``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="RESULT.json", help="write the result here too")
    return parser


def surroundings() -> dict[str, object]:
    """Return when and where a result was measured. The load shows whether the machine had other work."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load_1m": round(os.getloadavg()[0], 1),
    }


def keep(result: Mapping[str, object], path: Path | None) -> None:
    """Write a result as JSON, if a path is given."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def tell(result: Mapping[str, object], path: Path | None) -> None:
    """Print a result as JSON, and write it if a path is given."""
    print(json.dumps(result, indent=1))
    keep(result, path)


def in_turn(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Return the values of each way, one per round. Other work on the machine affects all ways of a round equally.

    The first round warms up and is thrown away; the order rotates, so that none always follows the same other.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            value = ways[name]()
            if number:
                found[name].append(value)
    return found


def until(ready: Callable[[], object], deadline_s: float = 90.0) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not come within `deadline_s`.
    """
    end = time.monotonic() + deadline_s
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)


def interval(
    values: Sequence[T], statistic: Callable[[Sequence[T]], float], draws: int = 4000
) -> tuple[float, float]:
    """Return the 95 % interval of a statistic over rounds, by bootstrap (Efron, 1979) with fixed draws."""
    dice = random.Random(0)
    found = sorted(statistic(dice.choices(values, k=len(values))) for _ in range(draws))
    return found[int(0.025 * draws)], found[int(0.975 * draws)]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two series of values. `goal`: its maximum, if it has one."""

    name: str
    ours: str
    base: str
    goal: float | None = None


def ratios(found: Mapping[str, Sequence[float]], wanted: Sequence[Ratio]) -> dict[str, dict[str, object]]:
    """Print and return the median over rounds of each ratio, with its 95 % interval and whether its goal is missed."""
    rows: dict[str, dict[str, object]] = {}
    for one in wanted:
        paired = [ours / max(base, 1e-9) for ours, base in zip(found[one.ours], found[one.base], strict=True)]
        middle, (low, high) = statistics.median(paired), interval(paired, statistics.median)
        is_missed = one.goal is not None and middle > one.goal
        rows[one.name] = {"ratio": round(middle, 3), "interval": [round(low, 3), round(high, 3)]}
        rows[one.name] |= {"goal": one.goal, "missed": is_missed}
        bound = f"goal ≤ {one.goal:g}" if one.goal is not None else "no goal"
        shown = f"{middle:6.2f} × ({low:.2f} to {high:.2f}; {bound})"
        print(f"{one.name:<45} {shown}{'  MISSED' if is_missed else ''}", flush=True)
    return rows


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far, 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status(pid: int) -> dict[str, int]:
    """Return the numbers of /proc/PID/status by name, memory in bytes. Empty once the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def with_mark(name: str, value: str) -> list[int]:
    """Return all processes that were started with this variable, wherever they are in the process tree."""
    wanted = f"{name}={value}".encode()
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdecimal() and wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue
    return found


def run_below(folder: Path) -> RunPaths | None:
    """Return the run that a command started in `folder`, once its journal exists."""
    found = [path.parents[2] for path in (folder / "runs").glob("*/nodes/0/events.jsonl")]
    return next((RunPaths(root) for root in found if not root.is_symlink()), None)


def steps_in_series(run: RunPaths) -> dict[str, set[int]]:
    """Return the steps in the series by rank, those of the job under `JOB_KEY`."""
    seen: dict[str, set[int]] = {}
    for stream in (METRICS, RANKS):
        reader = SeriesReader(run.node().series, stream)
        while samples := reader.read():
            for sample in samples:
                if (step := sample.v.get("step")) is not None:
                    seen.setdefault(JOB_KEY if stream == METRICS else sample.k, set()).add(int(step))
    return seen
