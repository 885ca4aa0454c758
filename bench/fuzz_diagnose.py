"""`stoker diagnose` on hostile logs for some minutes: no crash, no hang, no escape code in what it prints, memory bounded.

    python bench/fuzz_diagnose.py [--seconds 240] [--seed N] [--keep bench/results/fuzz_diagnose.json]

Mutated and cut real logs, random bytes, encodings, pattern bombs (see tests/hostile.py); then 100 MB without a newline of
several kinds, and gzip bombs, each in a child whose memory is measured. A finding prints its seed and ends with 1.
"""

from __future__ import annotations

import collections
import gzip
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, surroundings, tell
from tests.hostile import BOMBS, Hostile, endless, judged

DEADLINE_S = 60
BIG_DEADLINE_S = 300
BIG_BYTES = 100 << 20
MOST_MIB = 64
CHILD = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from supervisor.cli.main import main
code = main(["diagnose", sys.argv[2]])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


class HangError(Exception):
    """A log took longer than its deadline."""


def small_cases(seconds: float, seed: int, folder: Path) -> dict[str, object]:
    """Play cases until the time is over."""
    path = folder / "case.log"
    kinds: collections.Counter[str] = collections.Counter()
    slowest: list[tuple[float, str, int]] = []
    findings: list[str] = []
    hostile = Hostile(seed)
    ends = time.monotonic() + seconds
    number = seed

    def alarm(_number: int, _frame: FrameType | None) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, alarm)
    while time.monotonic() < ends:
        number += 1
        hostile.rng.seed(number)
        kind, data = hostile.case()
        path.write_bytes(data)
        began = time.process_time()
        signal.alarm(DEADLINE_S)
        try:
            judged(path)
        except (Exception, HangError) as error:  # noqa: BLE001 - whatever goes wrong is what is looked for
            findings.append(
                f"seed {number} ({kind}, {len(data)} bytes): {type(error).__name__}: {error}"[:500]
            )
        finally:
            signal.alarm(0)
        kinds[kind] += 1
        slowest = sorted([*slowest, (round(time.process_time() - began, 3), kind, number)])[-5:]
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "cases": kinds.total(),
        "kinds": dict(sorted(kinds.items())),
        "slowest_cpu_s": slowest,
        "peak_mib": round(rss, 1),
        "findings": findings,
    }


def big_cases(folder: Path) -> dict[str, object]:
    """Logs of 100 MB without a newline, and packed ones that unpack to more."""
    path = folder / "big.log"
    rows: dict[str, dict[str, float]] = {}
    findings: list[str] = []
    head = (
        b"step 1 loss 2.0\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )

    def child(name: str) -> None:
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-c", CHILD, str(ROOT), str(path)],
                capture_output=True,
                text=True,
                timeout=BIG_DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            findings.append(f"{name}: not done within {BIG_DEADLINE_S} s")
            return
        words = done.stderr.split()
        if done.returncode or len(words) != 2:
            findings.append(f"{name}: {done.stderr[-300:]}")
            return
        rows[name] = {
            "wall_s": round(time.monotonic() - began, 2),
            "peak_mib": round(int(words[1]) / 1024, 1),
        }
        if rows[name]["peak_mib"] > MOST_MIB:
            findings.append(f"{name}: {rows[name]['peak_mib']} MiB")

    for token in BOMBS:
        with path.open("wb") as file:
            file.writelines(endless(token, BIG_BYTES, head))
        child(f"100 MB of {token!r} without a newline")
    for name, token in (
        ("zeros", b"\0"),
        ("steps", b"step 1 loss 2.0\n"),
        ("memory errors", b"MemoryError\n"),
    ):
        with gzip.open(path, "wb", compresslevel=1) as packed:
            packed.writelines(endless(token, 3 * BIG_BYTES, head))
        child(f"gzip of 300 MB of {name}")
    return {"logs": rows, "findings": findings}


def main() -> int:
    """Run both parts; print and keep what came out."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--no-big", action="store_true", help="leave the 100 MB logs out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        small = small_cases(args.seconds, args.seed, Path(name))
        big = {} if args.no_big else big_cases(Path(name))
    report = {
        **surroundings(),
        "seed": args.seed,
        "seconds": args.seconds,
        "median_bytes": statistics.median([len(log) for log in Hostile(args.seed).logs]),
        "small": small,
        "big": big,
    }
    tell(report, args.keep)
    return 1 if small["findings"] or big.get("findings") else 0


if __name__ == "__main__":
    sys.exit(main())
