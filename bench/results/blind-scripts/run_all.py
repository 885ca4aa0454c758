"""Run each script of this folder under stoker and compare what was measured with the truth that was written before.

    python run_all.py STOKER --originals FOLDER --python PATH [--restart] [--only 01,12] [--limit 120] [--inputs FOLDER] [--out results.json]

The scripts themselves are other people's and not in this repository: FOLDER has one folder of originals per script, named as here,
and each file is held against the SHA-256 in truth.json. PATH is an interpreter with torch and what `needs` names. One script at a time.
An answer is `right`, `asked` (null, where the truth is known) or `wrong`. Only the stoker that this program started is signalled.

With --restart, attempt 1 of each script runs out of memory after four steps (fault.py), and what becomes of the restart is judged
(restarts.py): `confirmed`, `waits rightly (reason)`, `waits` where the truth would have allowed a restart, or `wrong`.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import restarts

HERE = Path(__file__).resolve().parent
QUESTIONS = (
    "micro_batch",
    "accumulation",
    "world_size",
    "global_batch",
    "setting",
    "scope",
    "accumulation_setting",
)
Row = dict[str, Any]


def prepared(case: Path, originals: Path, truth: Row) -> Path:
    """A new folder with the originals, the stub and run.sh. Raises ValueError where an original is not the one that was read."""
    work = Path(tempfile.mkdtemp(prefix=f"blind-{case.name}-"))
    for name, digest in truth["originals"].items():
        source = originals / case.name / name
        if not source.is_file() or hashlib.sha256(source.read_bytes()).hexdigest() != digest:
            raise ValueError(f"{source} is missing, or not the file of commit {truth['commit']}")
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, work / name)
    for source in (
        HERE / "kit.py",
        HERE / "run_on_cpu.py",
        *(p for p in case.iterdir() if p.name != "truth.json" and p.is_file()),
    ):
        shutil.copy(source, work / source.name)
    return work


def supervise(
    stoker: Path, python: Path, work: Path, limit_s: float, flags: tuple[str, ...] = (), ranks: int = 0
) -> int | None:
    """Run `bash run.sh` under stoker; its exit code, or None where it was ended: by the limit, or with `ranks` once all was seen."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("STOKER_", "SLURM_", "TORCHELASTIC_"))}
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        env[name] = str(work / "home" / name.lower())  # remembered answers must not count
    env.update(
        PATH=f"{python.parent}{os.pathsep}{env['PATH']}",
        OMP_NUM_THREADS="1",
        LC_ALL="C.UTF-8",
        PYTHONUNBUFFERED="1",
        **({"BLIND_FED": str(work / "fed")} if ranks else {}),
    )
    argv = [
        str(stoker),
        "run",
        "--no-ui",
        "--no-check",
        "--max-retries",
        "1" if ranks else "0",
        *flags,
        "--runs-dir",
        str(work / "runs"),
        "--",
        "bash",
        "run.sh",
    ]
    with (work / "stoker.txt").open("w") as out:
        child = subprocess.Popen(argv, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        return restarts.watch(child, work, ranks, limit_s)


def measured(runs: Path) -> Row | None:
    """The last `batch_measured` of the run's journal."""
    return next((e for e in reversed(restarts.events(runs)) if e.get("kind") == "batch_measured"), None)


def name_of(setting: object) -> str | None:
    """`--batch-size`, `batch_size`, `small.json#a.batch_size` or `small.json: a.batch_size`: the name alone, spelt one way."""
    if setting is None:
        return None
    name = str(setting).rpartition("#")[2].rpartition(": ")[2].split("=")[0].split(" (")[0]
    return name.strip().lstrip("-+").replace("-", "_")


def same(question: str, answer: object, truth: object) -> bool:
    if question not in ("setting", "accumulation_setting"):
        return answer == truth
    given, known = name_of(answer), name_of(truth)
    if given is None or known is None:
        return given == known or {given, known} == {None, "none"}
    return given == known or given.endswith(f".{known}") or known.endswith(f".{given}")


def judged(question: str, answers: Row | None, truth: Row) -> str:
    known = truth[question]
    if question == "scope" and (truth["world_size"] == 1 or truth["setting"] is None):
        return "-"  # there is nothing to tell apart
    if answers is None:
        return "asked"
    answer = answers.get(question)
    if any(same(question, answer, other) for other in (known, *truth.get("accept", {}).get(question, []))):
        return "right"
    return "asked" if answer is None else "wrong"


def restarted(case: Path, given: argparse.Namespace, truth: Row) -> Row:
    """The row of a script that runs out of memory: first as it is, then, where it waits, with what a person may allow."""
    runs: list[Row] = []
    for flags in ((), tuple(restarts.allowing(truth))):
        work = prepared(case, given.originals.resolve(), truth)
        shutil.copy(HERE / "fault.py", work)
        (work / "fed").mkdir()
        script = work / "run.sh"
        script.write_text(restarts.with_fault(script.read_text(), work / "fault.py"))
        ranks = truth["world_size"]
        code = supervise(given.stoker.resolve(), given.python.absolute(), work, given.limit, flags, ranks)
        runs.append({"flags": flags, "exit": code, **restarts.outcome(work, truth, cut_short=code is None)})
        if not given.keep:
            shutil.rmtree(work, ignore_errors=True)
        if runs[-1]["verdict"] != "waits" or truth["setting"] is None:
            break  # what stands in the code no flag changes
    verdict = restarts.verdict(truth, runs)
    said = " | ".join(str(run["confirmed"] or run["reason"]) for run in runs)
    print(f"{case.name:26}{verdict}; {said}", flush=True)
    return {"script": case.name, "verdict": verdict, "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stoker", type=Path)
    parser.add_argument("--originals", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--inputs", type=Path, default=HERE)
    parser.add_argument("--only", default="", help="beginnings of names, with commas")
    parser.add_argument("--restart", action="store_true", help="let attempt 1 run out of memory")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a script")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    wanted = tuple(given.only.split(","))
    cases = sorted(
        p for p in given.inputs.iterdir() if (p / "truth.json").is_file() and p.name.startswith(wanted)
    )
    rows: list[Row] = []
    (all_restarted if given.restart else all_measured)(cases, given, rows)
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def all_restarted(cases: list[Path], given: argparse.Namespace, rows: list[Row]) -> None:
    for case in cases:
        rows.append(restarted(case, given, json.loads((case / "truth.json").read_text())))
        if given.out:  # a row is not lost with what comes after it
            given.out.write_text(json.dumps(rows, indent=1) + "\n")
    totals = Counter(row["verdict"].partition(" (")[0] for row in rows)
    print("\n".join(f"{count:4} {name}" for name, count in totals.most_common()))


def all_measured(cases: list[Path], given: argparse.Namespace, rows: list[Row]) -> None:
    totals: Counter[tuple[str, str]] = Counter()
    misses = []
    print(f"{'script':26}" + "".join(f"{q[:12]:>13}" for q in QUESTIONS) + f"{'exit':>7}")
    for case in cases:
        truth = json.loads((case / "truth.json").read_text())
        work = prepared(case, given.originals.resolve(), truth)
        code = supervise(given.stoker.resolve(), given.python.absolute(), work, given.limit)
        answers = measured(work / "runs")
        verdicts = {q: judged(q, answers, truth) for q in QUESTIONS}
        rows.append({"script": case.name, "exit": code, "measured": answers, "verdicts": verdicts})
        totals.update((q, v) for q, v in verdicts.items())
        misses += [
            f"{case.name}: {q}: {v}: truth {truth[q]!r}, measured {(answers or {}).get(q)!r}"
            for q, v in verdicts.items()
            if v in ("asked", "wrong")
        ]
        misses += [] if answers else [f"{case.name}: no batch_measured in {work} (exit {code})"]
        print(
            f"{case.name:26}"
            + "".join(f"{verdicts[q]:>13}" for q in QUESTIONS)
            + f"{'limit' if code is None else code:>7}",
            flush=True,
        )
        if answers and not given.keep:
            shutil.rmtree(work, ignore_errors=True)
    for verdict in ("right", "asked", "wrong"):
        print(f"{verdict:26}" + "".join(f"{totals[q, verdict]:>13}" for q in QUESTIONS))
    print("\n".join(misses))


if __name__ == "__main__":
    sys.exit(main())
