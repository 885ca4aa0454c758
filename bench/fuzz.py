"""Fuzzes all readers of foreign input: no crash, no hang, no escape code in the output, bounded memory.

    python bench/fuzz.py [--parser NAME …] [--seconds 60] [--seed N] [--at-once 2] [--big] [--keep bench/results/fuzz.json]

Each parser has valid inputs and is given variants of them (tests/mutations.py; for logs tests/hostile.py), in a child process of its own whose
memory is measured. A case is a finding where it raises what a caller does not expect, prints what acts on a terminal or no JSON where JSON
was asked for, or takes more than `CASE_CPU_S` of the processor. A finding prints its seed, which plays it again:
``--parser NAME --seed N --seconds 0``. ``--big``: also logs of 100 MB without a newline, and gzip bombs.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, status, surroundings, tell
from bench.fuzz_parsers import PARSERS, Parser
from tests.hostile import BOMBS, Hostile, endless
from tests.mutations import Mutator

CASE_CPU_S = 30.0  # the densest 400 kB of source take 6; a quadratic reading of them takes minutes
CASE_WALL_S = 300.0  # a case that only waits
MOST_MIB = 800  # 400 kB of dense source are 250 MiB of tree, and two may be alive; an argument of 400 kB that is no text took 670
BIG_DEADLINE_S = 300
BIG_BYTES = 100 << 20
BIG_MIB = 64
MOST_FINDINGS = 20


class HangError(BaseException):
    """A case took longer than its deadline. Not an `Exception`, which the code under test may catch."""


def cases(parser: Parser, seed: int) -> Iterator[tuple[int, str, bytes]]:
    """Yield endless cases, each with its own seed."""
    hostile = Hostile(seed) if parser.seeds is None else None
    seeds = parser.seeds() if parser.seeds is not None else []
    mutator = Mutator(seed, seeds)
    while True:
        if hostile is not None:
            hostile.rng.seed(seed)
            yield seed, *hostile.case()
        else:
            mutator.rng.seed(seed)
            which = mutator.rng.randrange(len(seeds))
            yield seed, f"of input {which}", mutator.variant(seeds[which])
        seed += 1


def play_for(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """Play cases of one parser in this process for the given time, at least one case."""

    def alarm(_number: int, _frame: FrameType | None) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, alarm)
    signal.signal(signal.SIGVTALRM, alarm)
    faulthandler.enable()
    kinds: collections.Counter[str] = collections.Counter()
    slowest: list[tuple[float, int]] = []
    findings: dict[str, str] = {}  # one for each place in the code
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            HOME=folder,
            XDG_STATE_HOME=f"{folder}/state",
            XDG_CONFIG_HOME=f"{folder}/config",
            STOKER_RUNS_DIR=f"{folder}/runs",
        )
        here = Path(folder, "case")
        here.mkdir()
        play = PARSERS[name].open(here)
        for number, kind, data in cases(PARSERS[name], seed):
            began = time.process_time()
            signal.setitimer(signal.ITIMER_REAL, CASE_WALL_S)
            signal.setitimer(signal.ITIMER_VIRTUAL, CASE_CPU_S)
            try:
                play(data)
            except (Exception, HangError):  # noqa: BLE001 - whatever goes wrong is what is looked for
                text = traceback.format_exc().replace(
                    f"{ROOT}/", ""
                )  # a result is kept: no path of this machine
                place = [
                    line.strip()
                    for line in text.split("\n")
                    if line.startswith("  File") and "supervisor/" in line
                ][-1:]
                findings.setdefault(str(place), f"seed {number} ({kind}, {len(data)} bytes): {text[-1200:]}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            kinds[kind] += 1
            slowest = sorted([*slowest, (round(time.process_time() - began, 3), number)])[-3:]
            if time.monotonic() >= ends or len(findings) >= MOST_FINDINGS:
                break
    peak = status(os.getpid())["VmHWM"] / 2**20  # ru_maxrss begins with what the parent had at the fork
    if peak > MOST_MIB:
        findings["memory"] = f"{peak:.0f} MiB, more than {MOST_MIB}"
    return {
        "cases": kinds.total(),
        "kinds": dict(sorted(kinds.items())),
        "slowest_cpu_s": slowest,
        "peak_mib": round(peak, 1),
        "findings": list(findings.values()),
    }


def in_child(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """Play cases in a child process, which isolates memory and crashes of the interpreter."""
    argv = [sys.executable, __file__, "--alone", name, "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=seconds + 2 * CASE_WALL_S + 120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {
            "cases": 0,
            "findings": [f"it ended with {done.returncode}: {(done.stderr or done.stdout)[-1500:]}"],
        }
    return report


CHILD = """
import os, sys
sys.path.insert(0, sys.argv[1])
from bench.common import status
from supervisor.cli.main import main
code = main(["diagnose", sys.argv[2]])
print(code, status(os.getpid())["VmHWM"], file=sys.stderr)
"""


def big_logs(folder: Path) -> dict[str, Any]:
    """Judge logs of 100 MB without a newline, and gzip bombs."""
    path = folder / "big.log"
    rows: dict[str, dict[str, float]] = {}
    findings: list[str] = []
    head = (
        b"step 1 loss 2.0\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )

    def child(name: str) -> None:
        began = time.monotonic()
        try:
            argv = [sys.executable, "-c", CHILD, str(ROOT), str(path)]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=BIG_DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            findings.append(f"{name}: not done within {BIG_DEADLINE_S} s")
            return
        words = done.stderr.split()
        if done.returncode or len(words) != 2:
            findings.append(f"{name}: {done.stderr[-300:]}")
            return
        rows[name] = {
            "wall_s": round(time.monotonic() - began, 2),
            "peak_mib": round(int(words[1]) / 2**20, 1),
        }
        if rows[name]["peak_mib"] > BIG_MIB:
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
    """Play the chosen parsers, then print and keep the results."""
    parser = command_line(__doc__)
    parser.add_argument("--parser", action="append", choices=PARSERS, help="only this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=60, help="for each parser")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--at-once", type=int, default=2, help="parsers played at the same time")
    parser.add_argument(
        "--big", action="store_true", help="also logs of 100 MB without a newline, and gzip bombs"
    )
    parser.add_argument("--alone", choices=PARSERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(play_for(args.alone, args.seconds, args.seed)))
        return 0
    names = args.parser or list(PARSERS)
    with ThreadPoolExecutor(args.at_once) as pool:
        found = dict(
            zip(names, pool.map(lambda name: in_child(name, args.seconds, args.seed), names), strict=True)
        )
    if args.big:
        with tempfile.TemporaryDirectory() as folder:
            found["big logs, diagnose"] = big_logs(Path(folder))
    rows = {name: {"seed": args.seed, "seconds": args.seconds, **row} for name, row in found.items()}
    tell({**surroundings(), "parsers": rows}, args.keep)
    return 1 if any(row["findings"] for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
