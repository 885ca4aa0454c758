"""Scanning for all failure signatures: stoker against ripgrep and grep with the same patterns, on the same file, in turn.

    python bench/scan.py [--mib 256] [--rounds 5] [--keep bench/results/scan.json]

Prints medians, ratios and peak resident memory; what is not installed is left out. Goals: at most 0.60 × `rg -c -f` on one
thread, memory at most 64 MiB and flat in the log's size, `stoker diagnose` on a small log at most 5 × `python -c pass`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEP = "2026-03-01 10:{m:02d}:{s:02d},{n:03d} | INFO | train | epoch 3 step {n} loss {loss:.4f} lr 3.0e-04 grad_norm 1.{n:03d} tokens/s 13{n:03d}\n"
FAILURE = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB\n"
SCANNER = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from supervisor.cli.job_files import file_chunks
from supervisor.diagnosis.scan import scan_source
from supervisor.sources.signature_files import default_cache_dir, load_engine
from supervisor.text.prefixes import NOWHERE
engine = load_engine(default_cache_dir())
found = scan_source("log", NOWHERE, file_chunks(sys.argv[2]), engine.signatures, engine.matcher)
print(len(found.hits), found.lines, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
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
    from supervisor.diagnosis.tables import parse_tables
    from supervisor.sources.signature_files import read_tables

    entries = parse_tables(read_tables()).entries
    path.write_text("".join(entry.regex + "\n" for entry in entries))


def timed(command: list[str], env: dict[str, str]) -> tuple[float, str]:
    """CPU seconds of the child (a busy machine stretches the wall clock of all alike, but not evenly) and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout.strip()


def compare(
    commands: dict[str, list[str]], rounds: int, env: dict[str, str]
) -> tuple[dict[str, float], dict[str, str]]:
    times: dict[str, list[float]] = {name: [] for name in commands}
    said: dict[str, str] = {}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            seconds, said[name] = timed(command, env)
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}, said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write the result here too")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        big, tenth, small = (Path(folder) / name for name in ("big.log", "tenth.log", "small.log"))
        rules = Path(folder) / "patterns"
        make_log(big, args.mib)
        make_log(tenth, max(1, args.mib // 10))
        small.write_text("step 1 loss 2.0\n" * 1500 + FAILURE)
        patterns(rules)
        scan = [sys.executable, "-c", SCANNER, str(ROOT)]
        commands = {"stoker": [*scan, str(big)]}
        if shutil.which("rg"):
            commands["rg -j1"] = ["rg", "-j1", "--no-config", "-a", "-c", "-f", str(rules), str(big)]
        if shutil.which("grep"):
            commands["grep -E (literals only)"] = ["grep", "-a", "-c", "-F", "-e", "out of memory", str(big)]
        medians, said = compare(commands, args.rounds, env)
        peaks = {
            name: int(timed([*scan, str(path)], env)[1].split()[2]) / 1024
            for name, path in (("big", big), ("tenth", tenth))
        }
        quick, _ = compare(
            {
                "python -c pass": [sys.executable, "-c", "pass"],
                "diagnose small.log": [sys.executable, "-m", "supervisor", "diagnose", str(small)],
            },
            max(args.rounds, 15),
            env,
        )
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "mib": args.mib,
        "cpu_seconds": medians,
        "hits_lines_kib": said["stoker"],
        "ratio_to_rg": medians["stoker"] / medians["rg -j1"] if "rg -j1" in medians else None,
        "peak_mib": peaks,
        "small": quick,
        "ratio_to_python": quick["diagnose small.log"] / quick["python -c pass"],
    }
    text = json.dumps(report, indent=1)
    print(text)
    if args.keep is not None:
        args.keep.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
