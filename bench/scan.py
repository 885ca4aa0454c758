"""Scanning for all failure signatures: stoker against ripgrep with the same patterns, on the same file, in turn.

    python bench/scan.py [--mib 1024] [--rounds 5] [--keep bench/results/scan.json]

Whole processes. Prints medians, ratios (of each round, then their median) and peak resident memory; what is not installed is
left out. Goals: at most 0.60 × `rg -c -f` on one thread (CPU seconds: a busy machine stretches the wall clock of all, but not
evenly), at most 0.45 × by the wall clock on two, the same lines found, memory at most 64 MiB and flat from 10 MiB on,
`stoker diagnose` on a small log at most 8 × `python -c pass`.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, in_turn, surroundings, tell

STEP = "2026-03-01 10:{m:02d}:{s:02d},{n:03d} | INFO | train | epoch 3 step {n} loss {loss:.4f} lr 3.0e-04 grad_norm 1.{n:03d} tokens/s 13{n:03d}\n"
ONE, TWO, RG = "stoker, one thread", "stoker, two threads", "rg -j1"
FAILURE = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB\n"
SCANNER = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from supervisor.cli.job_logs import file_chunks
from supervisor.diagnosis.scan.scanner import scan_source
from supervisor.sources.tail.scan_ahead import AheadMatcher
from supervisor.sources.signature_files import default_cache_dir, load_engine
from supervisor.text.prefixes import NOWHERE
engine = load_engine(default_cache_dir())
matcher = engine.matcher if sys.argv[2] == "2" else AheadMatcher(engine.matcher, cores=1)
found = scan_source("log", NOWHERE, file_chunks(sys.argv[3]), engine.signatures, matcher)
print(len(found.hits), found.lines, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
LINES = """
import re, sys
sys.path.insert(0, sys.argv[1])
from supervisor.cli.job_logs import file_chunks
from supervisor.diagnosis.scan.windows import cut_windows
from supervisor.sources.signature_files import default_cache_dir, load_engine
engine = load_engine(default_cache_dir())
patterns = [re.compile(entry.regex.encode()) for entry in engine.signatures.entries]
lines = 0
for matched in engine.matcher.each(cut_windows(file_chunks(sys.argv[2]))):
    text = matched.text
    starts = {}
    for end, index in matched.matches:
        starts.setdefault(text.rfind(b"\\n", 0, max(end - 1, 0)) + 1, set()).add(index)
    for start, indexes in starts.items():
        stop = text.find(b"\\n", start)
        line = text[start : stop if stop >= 0 else len(text)]
        lines += any(patterns[index].search(line) for index in indexes)
print(lines)
"""


def make_log(path: Path, mib: int) -> None:
    block = "".join(STEP.format(m=n // 60 % 60, s=n % 60, n=n % 1000, loss=3 - n / 9000) for n in range(9000))
    with path.open("w") as file:
        size = 0
        turn = 0
        while size < mib << 20:
            size += file.write(block)
            turn += 1
            if turn % 8 == 0:
                size += file.write(FAILURE)


def patterns(path: Path) -> None:
    from supervisor.diagnosis.scan.signature_tables import parse_tables
    from supervisor.sources.signature_files import read_tables

    entries = parse_tables(read_tables()).entries
    path.write_text("".join(entry.regex + "\n" for entry in entries))


class Run(NamedTuple):
    """One child: its CPU and wall seconds, and what it printed."""

    cpu_s: float
    wall_s: float
    said: str


def timed(command: list[str], env: dict[str, str]) -> Run:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in {0, 10}:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr[-500:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(cpu_s, wall_s, done.stdout.strip())


def compare(commands: dict[str, list[str]], rounds: int, env: dict[str, str]) -> dict[str, list[Run]]:
    def once(command: list[str]) -> Callable[[], Run]:
        return lambda: timed(command, env)

    return in_turn({name: once(command) for name, command in commands.items()}, rounds)


def ratio(mine: list[Run], theirs: list[Run], clock: str) -> float:
    pairs = zip(mine, theirs, strict=True)
    return float(statistics.median(getattr(one, clock) / getattr(other, clock) for one, other in pairs))


def medians(runs: dict[str, list[Run]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            clock: statistics.median(getattr(one, clock) for one in found) for clock in ("cpu_s", "wall_s")
        }
        for name, found in runs.items()
    }


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        big, little, small = (Path(folder) / name for name in ("big.log", "little.log", "small.log"))
        rules = Path(folder) / "patterns"
        make_log(big, args.mib)
        make_log(little, 10)
        small.write_text("step 1 loss 2.0\n" * 1500 + FAILURE)
        patterns(rules)
        scan = [sys.executable, "-c", SCANNER, str(ROOT)]
        commands = {ONE: [*scan, "1", str(big)], TWO: [*scan, "2", str(big)]}
        if shutil.which("rg"):
            commands[RG] = ["rg", "-j1", "--no-config", "-a", "-c", "-f", str(rules), str(big)]
        timed(commands[ONE], env)  # the first use of a table stores its database
        runs = compare(commands, args.rounds, env)
        lines = timed([sys.executable, "-c", LINES, str(ROOT), str(big)], env).said
        peaks = {
            f"{mib} MiB": int(timed([*scan, "2", str(path)], env).said.split()[2]) / 1024
            for mib, path in ((args.mib, big), (10, little))
        }
        quick = compare(
            {
                "python -c pass": [sys.executable, "-c", "pass"],
                "diagnose small.log": [sys.executable, "-m", "supervisor", "diagnose", str(small)],
            },
            max(args.rounds, 15),
            env,
        )
    report = {
        **surroundings(),
        "mib": args.mib,
        "rounds": args.rounds,
        "seconds": medians(runs),
        "matching_lines": {"stoker": lines, "rg": runs[RG][0].said if RG in runs else None},
        "hits_lines_kib": runs[TWO][0].said,
        "same_with_two_threads": runs[ONE][0].said.split()[:2] == runs[TWO][0].said.split()[:2],
        "one_thread_to_rg_cpu": ratio(runs[ONE], runs[RG], "cpu_s") if RG in runs else None,
        "one_thread_to_rg_wall": ratio(runs[ONE], runs[RG], "wall_s") if RG in runs else None,
        "two_threads_to_rg_wall": ratio(runs[TWO], runs[RG], "wall_s") if RG in runs else None,
        "two_threads_to_one_wall": ratio(runs[TWO], runs[ONE], "wall_s"),
        "peak_mib": peaks,
        "small": medians(quick),
        "small_to_python_cpu": ratio(quick["diagnose small.log"], quick["python -c pass"], "cpu_s"),
        "small_to_python_wall": ratio(quick["diagnose small.log"], quick["python -c pass"], "wall_s"),
    }
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
