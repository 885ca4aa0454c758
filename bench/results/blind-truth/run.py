"""Judge a stoker by inputs whose truths were written before the change had been seen.

    python run.py PATH/TO/stoker [--python PATH] [--inputs FOLDER] [--only j1,h3] [--out results.json]

Each input is copied to a temporary folder and run there. A row is `right`, `refused` (it says that it does not know,
where the truth is known) or `wrong`. Only processes that this program started are ever signalled: the stoker of the row.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ALARM_S = 90.0  # for diagnose and metrics
Row = dict[str, Any]
Judged = tuple[str, str]


def environment(scratch: Path, python: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("STOKER_", "SLURM_", "TORCHELASTIC_"))}
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        env[name] = str(
            scratch / "home" / name.lower()
        )  # answers that were remembered elsewhere must not count
    env["PATH"] = f"{python.parent}{os.pathsep}{env.get('PATH', '')}"
    env.pop("VIRTUAL_ENV", None)
    env["LANG"] = env["LC_ALL"] = "C.UTF-8"
    return env


def end(child: subprocess.Popen[str]) -> None:
    """Ask our own stoker to end, ever less politely."""
    for sign, wait_s in ((signal.SIGINT, 30), (signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        if child.poll() is None:
            child.send_signal(sign)
            try:
                child.wait(wait_s)
            except subprocess.TimeoutExpired:
                continue


def supervise(stoker: Path, python: Path, row: Row, copy: Path, env: dict[str, str]) -> Row:
    """Run the row's job; what stoker reported, and whether it came to an end by itself."""
    python_flag = ["--python", str(python)] if "--nproc-per-node" in row["flags"] else []
    argv = [str(stoker), "run", "--no-ui", "--json", "--max-retries", "0", "--runs-dir", str(copy / "runs")]
    argv += [*python_flag, *row["flags"], *row["command"]]
    limit_s = row.get("watch_s") or row["limit_s"]
    started = time.monotonic()
    with (copy / "stderr.txt").open("w") as err:
        child = subprocess.Popen(
            argv, cwd=copy, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True
        )
    assert child.stdout is not None
    events: list[Row] = []

    def read(stream: Any) -> None:
        for line in stream:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                events.append(event | {"seen_s": round(time.monotonic() - started, 1)})

    reader = threading.Thread(target=read, args=(child.stdout,), daemon=True)
    reader.start()
    interrupted = False
    try:
        child.wait(limit_s)
    except subprocess.TimeoutExpired:
        interrupted = True
    before = list(events)
    end(child)
    reader.join(10)
    kinds = [str(e.get("kind")) for e in before]
    verdicts = [
        e["verdict"] for e in events if e.get("kind") == "diagnosed" and isinstance(e.get("verdict"), dict)
    ]
    outcomes = [e for e in events if e.get("kind") == "run_ended"]
    flags = [
        e
        for e in before
        if re.search(r"stall|hang", str(e.get("kind"))) and "clear" not in str(e.get("kind"))
    ]
    steps = [e["step"] for e in before if e.get("kind") == "progress" and isinstance(e.get("step"), int)]
    return {
        "exit": None if interrupted else child.returncode,
        "exit_after_interrupt": child.returncode if interrupted else None,
        "interrupted": interrupted,
        "seconds": round(time.monotonic() - started, 1),
        "class": verdicts[-1].get("failure") if verdicts else None,
        "reason": verdicts[-1].get("reason") if verdicts else None,
        "title": verdicts[-1].get("title") if verdicts else None,
        "outcome": outcomes[-1].get("outcome") if outcomes else None,
        "said": outcomes[-1].get("reason") if outcomes else None,
        "flagged_s": flags[0]["seen_s"] if flags else None,
        "flag_kinds": sorted({str(e["kind"]) for e in flags}),
        "attempts": kinds.count("attempt_started"),
        "attempt_ended_s": next((e["seen_s"] for e in before if e.get("kind") == "attempt_ended"), None),
        "last_step": max(steps, default=None),
        "stderr": (copy / "stderr.txt").read_text(errors="replace")[-600:],
    }


def judge_job(row: Row, seen: Row) -> Judged:
    accept = row["accept"]
    say = f"exit {seen['exit']}, {seen['class']}" + (f" ({seen['reason']})" if seen["reason"] else "")
    if seen["interrupted"]:
        return "wrong", f"{say}; still running after {row['limit_s']} s"
    if seen["exit"] in accept["exit"]:
        if accept["classes"] is None or seen["class"] in accept["classes"]:
            return "right", say
        return (
            "refused" if seen["class"] == "unknown" else "wrong"
        ), f"{say}; class expected: {accept['classes']}"
    doubt = seen["exit"] not in (0, 1, 2, 4) and seen["class"] == "unknown"
    return ("refused" if doubt else "wrong"), f"{say}; exit expected: {accept['exit']}"


def judge_hang(row: Row, seen: Row) -> Judged:
    accept = row["accept"]
    flagged = seen["flagged_s"] is not None
    # a job that stands never ends within the time watched; a healthy one is ended if it did not come to its own end
    ended = (
        seen["attempt_ended_s"] is not None
        if accept["flagged"]
        else seen["exit"] != 0 or seen["attempts"] != 1
    )
    say = f"flagged {'at ' + str(seen['flagged_s']) + ' s' if flagged else 'no'}, ended "
    say += f"at {seen['attempt_ended_s']} s" if ended else "no"
    say += f", exit {seen['exit']}, {seen['class']}, last step {seen['last_step']}"
    faults = []
    if not seen["last_step"]:
        faults.append("no step was seen")
    if flagged != accept["flagged"]:
        faults.append("should be flagged" if accept["flagged"] else "accused though healthy")
    if ended != accept["ended"]:
        faults.append("should be ended" if accept["ended"] else "ended though it should not be")
    if accept["exit"] is not None and not seen["interrupted"] and seen["exit"] not in accept["exit"]:
        faults.append(f"exit expected: {accept['exit']}")
    return ("wrong" if faults else "right"), "; ".join([say, *faults])


def command(
    stoker: Path, arguments: list[str], copy: Path, env: dict[str, str]
) -> tuple[int | None, list[Row]]:
    try:
        done = subprocess.run(
            [str(stoker), *arguments],
            cwd=copy,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ALARM_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, []
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, rows


def judge_log(row: Row, seen: Row) -> Judged:
    accept = row["accept"]
    say = f"exit {seen['exit']}, {seen['class']}, rank {seen['rank']}, node {seen['node']}, cause {seen['cause']!r:.90}"
    faults: list[str] = []
    doubts: list[str] = []
    if seen["class"] not in accept["classes"]:
        (doubts if seen["class"] == "unknown" else faults).append(f"class expected: {accept['classes']}")
    if accept["ranks"] is not None and seen["rank"] not in accept["ranks"]:
        (doubts if seen["rank"] is None else faults).append(f"rank expected: {accept['ranks']}")
    if accept["cause"] is not None and not any(re.search(c, seen["cause"] or "") for c in accept["cause"]):
        (doubts if seen["class"] == "unknown" else faults).append(f"cause expected: {accept['cause']}")
    if seen["exit"] not in accept["exit"]:
        (doubts if seen["class"] == "unknown" else faults).append(f"exit expected: {accept['exit']}")
    if seen["rank"] is not None and seen["rank"] in seen["consequence_ranks"]:
        faults.append("its rank is among its own consequences")
    return ("wrong" if faults else "refused" if doubts else "right"), "; ".join([say, *faults, *doubts])


def judge_metrics(row: Row, seen: Row) -> Judged:
    accept, points = row["accept"], seen["points"]

    def hits(want: Row) -> int:
        return sum(all(k in p and abs(p[k] - v) < 1e-9 for k, v in want.items()) for p in points)

    count = {json.dumps(w): hits(w) for w in accept["must"]}
    missing = [w for w, n in count.items() if n == 0]
    doubled = [w for w, n in count.items() if n > 1]
    false = [json.dumps(w) for w in accept["must_not"] if hits(w)]
    say = f"{len(points)} points with a step or a loss"
    faults = [
        f"{what}: {', '.join(those)}" for what, those in (("twice", doubled), ("false", false)) if those
    ]
    without_step = missing and all(hits({"loss": w["loss"]}) for w in accept["must"])
    text = [f"{'no step' if without_step else 'missing'}: {', '.join(missing)}"] if missing else []
    state = "wrong" if faults or (missing and not without_step) else "refused" if missing else "right"
    return state, "; ".join([say, *faults, *text])


def consequence_ranks(found: Row) -> list[int]:
    ranks = []
    for c in found.get("consequences") or []:
        if isinstance(c, dict):
            ranks += [r for r in [c.get("rank"), *(c.get("ranks") or [])] if isinstance(r, int)]
        elif isinstance(c, int):
            ranks.append(c)
    return ranks


def judge(stoker: Path, python: Path, row: Row, inputs: Path) -> Row:
    with tempfile.TemporaryDirectory(prefix=f"blind-{row['id']}-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        copy = scratch / "input"
        env = environment(scratch, python)
        source = inputs / row["path"]
        if source.is_dir():
            shutil.copytree(source, copy)
            seen = supervise(stoker, python, row, copy, env)
            state, text = (judge_job if row["kind"] == "job" else judge_hang)(row, seen)
        else:
            copy.mkdir()
            shutil.copy(source, copy)
            verb = "diagnose" if row["kind"] == "log" else "metrics"
            code, rows = command(stoker, [verb, "--json", source.name], copy, env)
            if row["kind"] == "log":
                found = rows[0] if rows else {}
                seen = {k: found.get(k) for k in ("rank", "node", "reason", "title", "confidence")}
                seen |= {
                    "exit": code,
                    "class": found.get("failure"),
                    "cause": (found.get("cause") or {}).get("text"),
                }
                seen["consequence_ranks"] = consequence_ranks(found)
                state, text = judge_log(row, seen)
            else:
                seen = {"exit": code, "points": [p for p in rows if "step" in p or "loss" in p]}
                state, text = judge_metrics(row, seen)
    return {"id": row["id"], "input": row["path"], "state": state, "text": text, "seen": seen}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("stoker", type=Path)
    p.add_argument("--python", type=Path, help="an interpreter with torch (default: the one beside stoker)")
    p.add_argument(
        "--inputs", type=Path, default=HERE, help="a folder with a truth.jsonl (default: this one)"
    )
    p.add_argument("--only", default="", help="ids, separated by commas")
    p.add_argument("--out", type=Path, default=Path("results.json"))
    a = p.parse_args()
    stoker = a.stoker.absolute()
    python = (a.python or stoker.parent / "python").absolute()
    only = set(filter(None, a.only.split(",")))
    results = []
    for line in (a.inputs / "truth.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if only and row["id"] not in only:
            continue
        result = judge(stoker, python, row, a.inputs)
        results.append(result)
        print(
            f"{result['state']:8} {result['id']:3} {Path(result['input']).stem:24} {result['text']}",
            flush=True,
        )
    totals = {s: sum(r["state"] == s for r in results) for s in ("right", "refused", "wrong")}
    print(", ".join(f"{n} {s}" for s, n in totals.items()))
    a.out.write_text(
        json.dumps({"totals": totals, "rows": results}, indent=1, ensure_ascii=False) + "\n", "utf-8"
    )
    return 0 if totals["right"] == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
