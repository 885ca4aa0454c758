"""The cost of the measurements inside a process: interleaved pairs of processes with and without them.

    python bench/instrument.py [--python PYTHON] [--pairs 12] [--keep bench/results/instrument.json]

`--python`: an interpreter with torch, and with transformers for that row. All times but the rows that say otherwise are processor
time, because the machine is rarely ours alone; even that grows when others use the caches, so believe a run on a quiet one.

Goals:
- a process that does nothing starts at most 5 ms later, one that trains makes its first step at most 30 ms later (median of pairs),
  with the bytecode that an installed package has; without it (another Python, which may write none there) is a row of its own;
- the hooks take at most 30 µs a step by themselves, with a DataLoader 60: `perf_counter_ns` around each wrapper less that around what
  it wraps, summed up step by step; the median step counts, the quickest is shown (a mean would count the other processes of a machine);
- the ratio of a step of about 3.6 ms, eager and compiled, is reported: missed only if its 95 % interval lies wholly above 1.05;
- not one graph break or compiled graph more; at most 5 MB more resident memory; one record a second after the first steps.
Prints and exits 1 when a goal is missed.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, in_turn, interval, keep, surroundings

PACKAGE = ROOT / "supervisor" / "instrument"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
STEP_RATIO = 1.05

# What a user writes. `block(steps)` is the processor time of a step in ms.
TRAINS = """
import argparse, json, os, resource, statistics, sys, time
import torch
parser = argparse.ArgumentParser(); parser.add_argument("--batch-size", type=int, default=16); parser.add_argument("--width", type=int, default=320)
args = parser.parse_args()
torch.set_num_threads(1); torch.manual_seed(0)
model = torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(args.width, args.width), torch.nn.GELU())])
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
batch = torch.randn(args.batch_size, args.width)
endless = type("Endless", (torch.utils.data.Dataset,), {"__len__": lambda _: 1 << 40, "__getitem__": lambda _, i: batch[0]})
def by_hand(): return batch
def step(draw, run=None):
    loss = (run or model)(draw()).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
def block(draw, steps, run=None):
    began = time.process_time()
    for _ in range(steps): step(draw, run)
    return 1000 * (time.process_time() - began) / steps
step(by_hand)
found = {"first step, ms": 1000 * time.process_time(), "first step, wall ms": 1000 * (time.monotonic() - float(os.environ["BEGAN"]))}
"""
FIRST = TRAINS + "print(json.dumps(found))"
STEPS = (
    TRAINS
    + """
loader = iter(torch.utils.data.DataLoader(endless(), batch_size=args.batch_size))
drawn = lambda: next(loader)
block(by_hand, 40); block(drawn, 40)
found["step, ms"] = statistics.median(block(by_hand, 20) for _ in range(15))
found["step with a DataLoader, ms"] = statistics.median(block(drawn, 20) for _ in range(15))
found["resident, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(found))
"""
)
COMPILED = (
    TRAINS
    + """
run = torch.compile(model, backend=BACKEND)
block(by_hand, 40, run)
found["compiled step, ms"] = statistics.median(block(by_hand, 20, run) for _ in range(15))
counters = torch._dynamo.utils.counters
found["graph breaks"] = sum(counters["graph_break"].values())
found["compiled graphs"] = counters["stats"]["unique_graphs"]
print(json.dumps(found))
"""
)
# A model of one number. Each wrapper is timed from outside, and what it wraps from inside. The probes' own time, under 1 µs a step here, is in the figure.
OWN = (
    TRAINS.replace("default=320", "default=1").replace("default=16", "default=1")
    + """
now, own = time.perf_counter_ns, [0]
def timed(function, sign):
    def call(*args, **more):
        began = now()
        try: return function(*args, **more)
        finally: own[0] += sign * (now() - began)
    return call
def probe(owner, name):
    observed = getattr(owner, name)
    cell = observed.__closure__[observed.__code__.co_freevars.index("original")]
    cell.cell_contents = timed(cell.cell_contents, -1)
    setattr(owner, name, timed(observed, 1))
loader = iter(torch.utils.data.DataLoader(endless(), batch_size=1))
drawn = lambda: next(loader)
probe(torch.autograd, "backward"); probe(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__")
hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
hooks.update({key: timed(hook, 1) for key, hook in hooks.items()})
def steps(draw, count):
    times = []
    for _ in range(count):
        own[0] = 0
        step(draw)
        times.append(own[0] / 1000)
    return times
for name, draw in (("hooks, µs a step", by_hand), ("hooks with a DataLoader, µs a step", drawn)):
    steps(draw, 200)
    times = steps(draw, STEPS)
    found[name], found["quickest " + name] = statistics.median(times), min(times)
print(json.dumps(found))
"""
)


class Pairs:
    """Runs scripts with and without the measurements.

    Attributes:
        telemetry: where the processes that have them write.
        source: a copy of the package in which there is no bytecode.
    """

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.telemetry, self.source = python, folder / "telemetry", folder / "source"
        shutil.copytree(PACKAGE, self.source, ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, script: str, package: Path | None) -> dict[str, float]:
        """Return the script's JSON output and its CPU time in ms. `package`: the measuring package, or None."""
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "BEGAN": repr(time.monotonic()),
        }
        environment.pop(NO_BYTECODE, None)  # the round that warms up writes it, as an installation does
        if package is not None:
            environment.update(PYTHONPATH=str(package / "on_path"), STOKER_TELEMETRY_DIR=str(self.telemetry))
        if package == self.source:
            environment[NO_BYTECODE] = "1"
        child = subprocess.Popen(
            [self.python, "-c", script], env=environment, cwd=self.telemetry.parent, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        text = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"a child ended with exit code {child.returncode}")
        found: dict[str, float] = json.loads(text) if text else {}
        return {**found, "process, ms": 1000 * (used.ru_utime + used.ru_stime)}

    def compare(
        self, script: str, pairs: int, package: Path = PACKAGE
    ) -> dict[str, list[tuple[float, float]]]:
        """Return (without, with) for each number, one pair per round."""
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "without": lambda: self.run(script, None),
            "with": lambda: self.run(script, package),
        }
        times = in_turn(ways, pairs)
        return {
            name: [
                (one[name], other[name]) for one, other in zip(times["without"], times["with"], strict=True)
            ]
            for name in times["with"][0]
        }


def difference(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(other - one for one, other in pairs)


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(other / one for one, other in pairs)


def row(
    pairs: Sequence[tuple[float, float]], statistic: Callable[[Any], float], goal: float | None
) -> dict[str, Any]:
    """Return a row's value, 95 % interval and whether its goal is missed. A ratio misses it only with its whole interval."""
    value, (low, high) = statistic(pairs), interval(pairs, statistic)
    worst = low if statistic is ratio else value
    without = statistics.median(one for one, _ in pairs)
    return {
        "without": round(without, 2),
        "ratio" if statistic is ratio else "more": round(value, 3),
        "interval": [round(low, 3), round(high, 3)],
        "pairs": len(pairs),
        "goal": goal,
        "missed": goal is not None and worst > goal,
    }


def records_a_second(telemetry: Path) -> float:
    """Return the records per second of the last process, after its first steps."""
    steps = [json.loads(line) for line in (telemetry / "measured0.jsonl").read_text().splitlines()]
    pid = [one["pid"] for one in steps if one["kind"] == "phase"][-1]
    last = max(at for at, one in enumerate(steps) if one["kind"] == "phase" and one["pid"] == pid)
    later = [one["t_mono"] for one in steps[last:] if one["kind"] == "step" and one["step"] > 4]
    return float((len(later) - 1) / (later[-1] - later[0]))


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10_000, help="of the hooks' own time")
    parser.add_argument("--backend", default="inductor", help="of the compiled step")
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        both = Pairs(args.python, Path(folder))
        rows["python -c pass, ms"] = row(both.compare("pass", 2 * args.pairs)["process, ms"], difference, 5.0)
        rows["import torch, ms"] = row(
            both.compare("import torch", args.pairs)["process, ms"], difference, None
        )
        first = both.compare(FIRST, 3 * args.pairs)
        rows["first step, ms"] = row(first["first step, ms"], difference, 30.0)
        rows["first step, wall ms"] = row(first["first step, wall ms"], difference, None)
        first = both.compare(FIRST, 2 * args.pairs, both.source)
        rows["first step without bytecode, ms"] = row(first["first step, ms"], difference, None)
        steps = both.compare(STEPS, args.pairs)
        for name in ("step, ms", "step with a DataLoader, ms"):
            rows[name] = row(steps[name], ratio, STEP_RATIO)
        rows["resident, MB"] = row(steps["resident, MB"], difference, 5.0)
        compiled = both.compare(COMPILED.replace("BACKEND", repr(args.backend)), max(args.pairs // 4, 3))
        rows["compiled step, ms"] = row(compiled["compiled step, ms"], ratio, STEP_RATIO)
        for name in ("graph breaks", "compiled graphs"):
            rows[name] = row(compiled[name], difference, 0.0)
        own = both.run(OWN.replace("STEPS", str(args.steps)), PACKAGE)
        for name, goal in (("hooks, µs a step", 30.0), ("hooks with a DataLoader, µs a step", 60.0)):
            quickest = round(own["quickest " + name], 1)
            rows[name] = {
                "value": round(own[name], 1),
                "quickest": quickest,
                "goal": goal,
                "missed": own[name] > goal,
            }
        a_second = records_a_second(both.telemetry)
        rows["records a second"] = {"value": round(a_second, 2), "goal": 1.0, "missed": a_second > 1.05}
        starts = "from transformers import Trainer"
        if subprocess.run([args.python, "-c", starts], capture_output=True, check=False).returncode == 0:
            rows["transformers, ms"] = row(
                both.compare(starts, max(args.pairs // 4, 3))["process, ms"], ratio, STEP_RATIO
            )
    print(f"{'':36}{'without':>10}{'more or ratio':>15}{'95 % interval':>20}{'goal':>8}")
    for name, held in rows.items():
        shown = next(held[key] for key in ("value", "ratio", "more") if key in held)
        low_high = " to ".join(map(str, held.get("interval", ())))
        wanted = held["goal"] if held["goal"] is not None else "-"
        missed = "missed" if held["missed"] else ""
        print(f"{name:36}{held.get('without', ''):>10}{shown:>15}{low_high:>20}{wanted:>8} {missed}")
    keep({**surroundings(), "rows": rows}, args.keep)
    return int(any(held["missed"] for held in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
