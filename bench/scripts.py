"""Command lines of real scripts: what would an out-of-memory failure change, and how would they resume?

    bench/scripts.py TREES [MANIFEST] [--split holdout] [--show]
TREES/<owner>+<name> are checkouts at the manifest's commits, fetched by whoever runs this; none of their code is here. A row is right
where the set of (setting, new value) is that of its `changes` or of one of its `alternatives`; a row without any must be refused. A
resume is right where one is known for a row that has one, by a setting that the row names. Exit 1 at any wrong change.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MANIFEST = ROOT / "tests" / "scripts_corpus" / "manifest.jsonl"
OPTION = re.compile(r"--?\w|\w[._]\w|=")
NO_WAY = re.compile(r"(no|none|nothing|cannot)\b", re.IGNORECASE)


def setting(name: str) -> str:
    """The last part of a flag's, override's or config key's name."""
    return re.split(r"[.#]", name.lstrip("-"))[-1].replace("-", "_")


def answer(row: dict[str, Any], tree: Path) -> dict[str, Any] | None:
    """What the dry run says of one row; None where it says nothing."""
    match = re.match(r"\(cd ([^)]*)\) ((?:\w+=\S+ )*)stoker run ", row["command"])
    if match is None:
        return None
    words = shlex.split(row["command"][match.end() :])
    # Configs that the row's own author wrote stand in the tree for this one run.
    own = [tree / match[1] / name for name in row.get("files", {}) if not (tree / match[1] / name).exists()]
    for file in own:
        file.write_text(row["files"][file.relative_to(tree / match[1]).as_posix()], encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "supervisor", "run", "--dry-run", "--json", *words],
            cwd=tree / match[1],
            env={
                "PYTHONPATH": str(ROOT),
                "PATH": "/usr/bin:/bin",
                **dict(word.split("=", 1) for word in match[2].split()),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        for file in own:
            file.unlink()
    try:
        found: dict[str, Any] = json.loads(done.stdout)["on_oom"]
    except (ValueError, KeyError):
        return None
    return found


def judged(row: dict[str, Any], plan: dict[str, Any] | None) -> tuple[str, str]:
    """The verdicts on the changes and on the resume."""
    if plan is None:
        return "no answer", "no answer"
    got = {(setting(c["knob"]), str(c["to"])) for c in plan.get("changes") or ()}
    wanted = [
        {(setting(name), value) for name, value in way}
        for way in (row["changes"], *row.get("alternatives", ()))
    ]
    if got:
        change = "right" if got in wanted else "WRONG"
    else:
        change = "rightly refused" if not wanted[0] else "refused, fair" if row["refusal_fair"] else "refused"
    resume, way = plan["resume"], row["resume"] or "none"
    says, has = resume["how"] in {"flag", "self"}, not NO_WAY.match(way)
    # A way that is written down by its setting is right by that one alone.
    named = (
        resume["how"] != "flag" or not OPTION.search(way) or setting(resume["knob"]) in way.replace("-", "_")
    )
    return change, "right" if says == has and named else "WRONG" if says else "missed"


def main() -> int:
    """Score a manifest over fetched trees."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", type=Path)
    parser.add_argument("manifest", type=Path, nargs="?", default=MANIFEST)
    parser.add_argument(
        "--split",
        choices=(
            "develop",
            "holdout",
            "holdout2",
            "holdout3",
            "holdout4",
            "holdout5",
            "develop6",
            "holdout6",
            "develop8",
            "holdout8",
            "holdout9",
        ),
    )
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    changes, resumes = collections.Counter[str](), collections.Counter[str]()
    for row in map(json.loads, given.manifest.read_text(encoding="utf-8").splitlines()):
        tree = given.trees / row["repo"].replace("/", "+")
        if given.split in {None, row.get("split")} and tree.is_dir():
            plan = answer(row, tree)
            change, resume = judged(row, plan)
            changes[change] += 1
            resumes[resume] += 1
            if given.show:
                print(row["n"], row["repo"], change, "| resume", resume, "|", plan)
    print("changes:", dict(changes), "· resume:", dict(resumes))
    return int(not changes or bool(changes["WRONG"] or changes["no answer"] or resumes["WRONG"]))


if __name__ == "__main__":
    sys.exit(main())
