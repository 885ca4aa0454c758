"""One script whose first attempt runs out of memory: whether stoker restarted it, whether the plan was confirmed, and what was trained.

What was trained is read from the lines that `fault.py` writes in the ranks, never from stoker's own records. A script runs once as it is.
Where it waits for what only a person can allow, it runs a second time with the flags that allow it.
"""

import json
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ALLOWED = {"smaller": "--allow-smaller-global", "scratch": "--restart-from-scratch"}
SEEN_STEPS = 3
"""Steps of each rank in attempt 2 before the run is ended: as many as an accumulation needs to be measured."""


def with_fault(script: str, fault: Path) -> str:
    """`run.sh` with fault.py before the first Python file of each command."""
    lines = script.splitlines(keepends=True)
    return "".join(
        re.sub(r"(?<=\s)(\S+\.py)\b", f"{fault} \\1", line, count=1) if "python " in line else line
        for line in lines
    )


def events(runs: Path) -> list[Row]:
    """What the journals have so far."""
    found = []
    for journal in sorted(runs.glob("**/events.jsonl")):
        for line in journal.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # a line that is being written
    return found


def fed(folder: Path, attempt: int) -> list[list[Row]]:
    """Of each process of an attempt that made a step: its steps."""
    found = []
    for file in sorted(folder.glob(f"{attempt}.*.jsonl")):
        lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        found.append([json.loads(line) for line in lines])
    return found


def watch(child: subprocess.Popen[bytes], work: Path, ranks: int, limit_s: float) -> int | None:
    """Wait for a run; with `ranks`, end it once attempt 2 was confirmed and has shown enough steps. Its exit code, None where it was ended."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            return child.wait(1)
        except subprocess.TimeoutExpired:
            pass
        settled = ranks and any(e["kind"] == "plan_confirmed" for e in events(work / "runs"))
        if settled and sum(len(steps) > SEEN_STEPS for steps in fed(work / "fed", 2)) >= ranks:
            break
    for sign, wait_s in ((signal.SIGINT, 40), (signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        child.send_signal(sign)
        try:
            child.wait(wait_s)
            return None
        except subprocess.TimeoutExpired:
            continue
    return None


def usual(processes: list[list[Row]]) -> dict[int, Counter[str]]:
    """Of each optimizer, what most steps were made of: each forward's module and shapes, and how often it came in a step."""
    kinds: dict[int, Counter[str]] = {}
    for steps in processes:
        for step in steps:
            made = json.dumps(sorted(Counter(map(json.dumps, step["forwards"])).items()))
            kinds.setdefault(step["optimizer"], Counter())[made] += 1
    return {
        number: Counter(dict(json.loads(max(sorted(seen), key=seen.__getitem__))))
        for number, seen in kinds.items()
    }


def sized(before: list[list[int]], after: list[list[int]], old: int, new: int) -> bool:
    """Whether inputs have `new` samples in place of `old`: each dimension that changed was scaled so, and one did change."""
    pairs = [(b, a) for b, a in zip(before, after) if b != a]
    if old == new:
        return not pairs
    return bool(pairs) and all(
        len(b) == len(a) and all(x * old == y * new or x == y for x, y in zip(a, b)) for b, a in pairs
    )


def trained_as(first: dict[int, Counter[str]], second: dict[int, Counter[str]], old: Row, new: Row) -> bool:
    """Whether attempt 2's steps are attempt 1's with another micro-batch and number of passes."""
    if not first or set(first) != set(second):
        return False
    for number, before in first.items():
        after = second[number]
        if sum(before.values()) * new["accumulation"] != sum(after.values()) * old["accumulation"]:
            return False
        held = 0
        for (was, _), (now, _) in zip(sorted(before.items()), sorted(after.items()), strict=False):
            (name, shapes), (other, shapes_now) = json.loads(was), json.loads(now)
            if name == other and shapes == shapes_now and all(shape[:1] == [1] for shape in shapes):
                continue  # a rollout: one sample, whatever the batch is
            if name != other or not sized(shapes, shapes_now, old["micro_batch"], new["micro_batch"]):
                return False
            held += 1
        if not held:
            return False
    return True


def planned(journal: list[Row]) -> Row | None:
    """The batch that the decision after attempt 1 changes the job to; None where it changes none."""
    for event in journal:
        change = (event.get("decision") or {}).get("change") or {}
        if event.get("kind") == "decided" and event.get("attempt") == 1 and change.get("batch"):
            after = change["batch"]["after"]
            return {
                "micro_batch": after["micro_batch_per_rank"],
                "accumulation": after["accumulation_steps"],
            }
    return None


def outcome(work: Path, truth: Row, *, cut_short: bool = False) -> Row:
    """What one run came to, `cut_short` where it was ended: `verdict`, stoker's reason, its plan, and what the steps were made of: in attempt 1, and on each rank of 2."""
    journal = events(work / "runs")
    decision = next((e["decision"] for e in journal if e["kind"] == "decided" and e["attempt"] == 1), None)
    plan, first = planned(journal), usual(fed(work / "fed", 1))
    second = [usual([steps]) for steps in fed(work / "fed", 2)]
    confirmed = next((e for e in journal if e["kind"] == "plan_confirmed" and e["attempt"] == 2), None)
    differs = next((e for e in journal if e["kind"] == "plan_differs"), None)
    row = {
        "reason": decision["reason"] if decision else None,
        "plan": plan,
        "confirmed": confirmed and confirmed.get("planned"),
        "resumed": confirmed and confirmed.get("resume"),
        "differs": differs and {k: differs.get(k) for k in ("planned", "measured", "why")},
        "trained": first,
        "trained_then": second,
    }
    if not any(e["kind"] == "attempt_started" and e["attempt"] == 2 for e in journal):
        failed = decision is not None and decision["kind"] != "stop"
        return {"verdict": "waits" if failed else "limit", **row}
    right = plan is not None and second != [] and all(trained_as(first, rank, truth, plan) for rank in second)
    if confirmed and right:
        return {"verdict": "confirmed", **row}
    if differs or not second:
        return {"verdict": "ended" if differs else "limit" if cut_short else "made no step", **row}
    return {"verdict": "not confirmed" if right else "wrong", **row}


def allowing(truth: Row) -> list[str]:
    """The flags by which a person allows what this script's truth needs."""
    fixed = truth["accumulation_setting"] in {"none", None} or truth["setting"] is None
    return [*([ALLOWED["smaller"]] if fixed else []), ALLOWED["scratch"]]


def verdict(truth: Row, runs: list[Row]) -> str:
    """What a script's runs come to; the last one is that with the flags, where there are two."""
    for name in ("wrong", "not confirmed"):
        if any(run["verdict"] == name for run in runs):
            return name
    last = runs[-1]
    if last["verdict"] != "waits":
        return last["verdict"]
    may_wait = None in (truth["setting"], *truth.get("accept", {}).get("setting", []))
    return f"waits rightly ({last['reason']})" if may_wait else "waits"
