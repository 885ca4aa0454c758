"""What stoker concludes from logs alone, where no process was measured: each labelled corpus, row by row, for this checkout or another.

    python bench/without_facts.py [--tree CHECKOUT] [--before FILE] [--keep FILE]

A row is right, refused (its verdict is `unknown`; of numbers: a value is missing), or wrong: another class, another rank, another value, or a
value where the label has none. `--before`: what was kept of another checkout; rows that got worse are named. Inputs are always this checkout's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "corpus" / "data"
BLIND = (ROOT / "bench" / "results" / "blind-truth", ROOT / "bench" / "results" / "blind-truth-2")
RIGHT, REFUSED, WRONG = "right", "refused", "wrong"
NO_FAILURE = ("healthy", "unknown")
CORE = (
    "rank", "step", "total_steps", "epoch", "loss", "val_loss", "lr", "grad_norm", "tokens_per_sec", "samples_per_sec", "step_time_s", "mfu",
    "memory_gib", "eta_s",
)  # fmt: skip
INVENTED = ("loss", "val_loss", "step", "lr")
Answer = Callable[[list[str]], list[dict[str, Any]]]
Marks = dict[str, tuple[str, str]]
"""By row: the mark, and what was answered."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def written(folder: Path, text: str, number: int) -> str:
    path = folder / f"log{number:04d}.txt"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return str(path)


def mark(found: dict[str, Any], classes: set[str], places: dict[str, set[Any]]) -> tuple[str, str]:
    """`places`: of `rank`, `local_rank` and `node`, what is right; a key that is not there is not judged."""
    said = [found.get("failure"), *(found.get(key) for key in places)]
    told = " ".join(map(str, said))
    if found.get("failure") not in classes:
        return (REFUSED if found.get("failure") in {"unknown", None} else WRONG), told
    off = [key for key, right in places.items() if found.get(key) not in right]
    if not off:
        return RIGHT, told
    return (REFUSED if all(found.get(key) is None for key in off) else WRONG), told


def labelled(stoker: Answer, name: str) -> Marks:
    """failures.jsonl, ranks.jsonl or ends.jsonl."""
    marks: Marks = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(rows_of(DATA / name)):
            (found,) = stoker(["diagnose", "--json", written(Path(folder), row["text"], number)])
            places: dict[str, set[Any]] = {}
            if name == "ranks.jsonl":
                places = {key: {row[key]} for key in ("rank", "local_rank", "node")}
            elif row.get("first_bad_rank") is not None and row["cls"] not in NO_FAILURE:
                places = {"rank": {row["first_bad_rank"]}}
            classes = {row["cls"]} if "cls" in row else set()
            marks[row["id"]] = mark(found, classes | set(row.get("accept", [])), places)
    return marks


def real(stoker: Answer, kind: str) -> Marks:
    """Folders of real failures: as a folder, or their text alone."""
    marks: Marks = {}
    for meta in sorted((DATA / "real").glob("*/meta.json")):
        case = json.loads(meta.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as place:
            job = Path(place) / "job"
            job.mkdir()
            for item in meta.parent.iterdir():
                if item.is_dir():
                    shutil.copytree(item, job / item.name)
                elif item.name not in {"meta.json", "concat.log"} and item.suffix not in {".py", ".sh"}:
                    shutil.copy(item, job)
            text = meta.parent / "concat.log"
            if kind == "text" and not text.exists():
                continue
            path = Path(shutil.copy(text, place)) if kind == "text" else job
            (found,) = stoker(["diagnose", "--json", str(path)]) or [{}]
            accepted = {case["class"], *case.get("accept", [])}
            accepted |= set(case.get("accept_text", [])) if kind == "text" else set()
            places: dict[str, set[Any]] = {}
            if case.get("first_bad_rank") is not None and case["class"] != "healthy":
                alike = {case["first_bad_rank"], *case.get("also_ranks", [])}
                listed = set(found.get("ranks") or [])
                places = {
                    "rank": alike | ({None} if len(alike) > 1 and listed and listed <= alike else set())
                }
            marks[meta.parent.name] = mark(found, accepted, places)
    return marks


def equal(got: object, want: object) -> bool:
    if isinstance(got, (int, float)) and isinstance(want, (int, float)):
        return abs(got - want) <= 0.01 * max(abs(want), 1e-12)
    return str(got).lower() == str(want).lower()


def numbers(stoker: Answer, name: str) -> Marks:
    """metrics*.jsonl: the values of each line."""
    marks: Marks = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(rows_of(DATA / name)):
            found: dict[int, dict[str, Any]] = {}
            for entry in stoker(["metrics", "--json", written(Path(folder), row["text"], number)]):
                found.setdefault(entry["line"], {}).update(entry)
            expected = {entry["line"]: entry for entry in row["expect"]}
            wants = [(at, key, e[key]) for at, e in expected.items() for key in CORE if key in e]
            missing = [w for w in wants if found.get(w[0], {}).get(w[1]) is None]
            false = [w for w in wants if w not in missing and not equal(found[w[0]][w[1]], w[2])]
            false += [
                (at, key, got[key])
                for at, got in found.items()
                for key in INVENTED
                if at not in row.get("lenient", ())
                and got.get(key) is not None
                and key not in expected.get(at, {})
            ]
            marks[row["id"]] = (WRONG if false else REFUSED if missing else RIGHT), f"{false} {missing}"
    return marks


def blind(stoker: Answer, inputs: Path) -> Marks:
    """The logs and numbers whose truths were written before; judged by their own runner."""
    sys.path.insert(0, str(BLIND[0]))
    judge = importlib.import_module("run")
    marks: Marks = {}
    for row in rows_of(inputs / "truth.jsonl"):
        if row["kind"] not in {"log", "metrics"}:
            continue
        verb = "diagnose" if row["kind"] == "log" else "metrics"
        found = stoker([verb, "--json", str(inputs / row["path"])])
        if row["kind"] == "metrics":
            points = [point for point in found if "step" in point or "loss" in point]
            marks[row["id"]] = judge.judge_metrics(row, {"points": points})
            continue
        one = found[0] if found else {}
        seen = {
            "rank": one.get("rank"),
            "node": one.get("node"),
            "exit": one["exit"],
            "class": one.get("failure"),
        }
        seen |= {
            "cause": (one.get("cause") or {}).get("text"),
            "consequence_ranks": judge.consequence_ranks(one),
        }
        marks[row["id"]] = judge.judge_log(row, seen)
    return marks


def scored(stoker: Answer) -> Iterator[tuple[str, Marks]]:
    for name in ("failures.jsonl", "ranks.jsonl", "ends.jsonl"):
        yield name, labelled(stoker, name)
    for kind in ("folder", "text"):
        yield f"real, as {kind}", real(stoker, kind)
    for inputs in BLIND:
        yield f"{inputs.name}, logs and numbers", blind(stoker, inputs)
    for name in ("metrics.jsonl", "metrics_more.jsonl", "metrics_unseen.jsonl"):
        yield name, numbers(stoker, name)


def command_line(tree: Path) -> Answer:
    """The command of a checkout, in this process."""
    sys.path.insert(0, str(tree))
    main = importlib.import_module("supervisor.cli.main")
    assert Path(str(main.__file__)).is_relative_to(tree), main.__file__

    def answer(words: list[str]) -> list[dict[str, Any]]:
        held = io.BytesIO()
        out = io.TextIOWrapper(held, encoding="utf-8")  # `metrics` writes bytes
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = main.main(words)
        out.flush()
        lines = held.getvalue().decode("utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [{"exit": code, **one} for one in found]

    return answer


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    stoker = command_line(args.tree.resolve())
    before = json.loads(args.before.read_text(encoding="utf-8")) if args.before else {}
    kept: dict[str, Any] = {}
    order = (RIGHT, REFUSED, WRONG)
    for name, marks in scored(stoker):
        counts = {state: sum(state == given for given, _ in marks.values()) for state in order}
        others = {row: given for row, given in marks.items() if given[0] != RIGHT}
        kept[name] = {"rows": len(marks), **counts, "not right": others}
        print(f"{name}: {len(marks)} rows, {counts}", flush=True)
        was = before.get(name, {}).get("not right", {}) if before else others
        for row in sorted(was.keys() | others.keys()):
            old, new = was.get(row, (RIGHT, "")), others.get(row, (RIGHT, ""))
            if tuple(old) != tuple(new):
                worse = order.index(old[0]) < order.index(new[0])
                print(f"  {'WORSE' if worse else 'changed'} {row}: {' '.join(old)} -> {' '.join(new)}")
        if args.keep:
            args.keep.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
