"""Score what `stoker diagnose` says of the logs beside this file against their labels.

python bench/results/blind-half/score.py [--stoker PROGRAM] [--keep FILE]: the classes that are right, alarms, sure mistakes, causes and ranks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
QUIET = ("healthy", "terminated")  # nothing of the job's own had failed
SURE = 0.9


def judged(stoker: list[str], log: Path) -> dict[str, object]:
    """The object that `diagnose --json` prints."""
    done = subprocess.run(
        [*stoker, "diagnose", "--json", str(log)], capture_output=True, text=True, check=False
    )
    found: dict[str, object] = json.loads(done.stdout or "{}")
    return found


def main() -> int:
    """Print the figures and every log whose class is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stoker", default=f"{sys.executable} -m supervisor", help="what starts stoker")
    parser.add_argument("--keep", type=Path, help="write each answer there, as JSON lines")
    args = parser.parse_args()
    rows = [json.loads(line) for line in (HERE / "truth.jsonl").read_text(encoding="utf-8").splitlines()]
    logs = {path.name.removesuffix(".gz").removesuffix(".log"): path for path in (HERE / "logs").iterdir()}
    answers, wrong, counts = (
        [],
        [],
        dict.fromkeys(("right", "alarms", "sure", "sure_wrong", "line", "lines", "rank", "ranks"), 0),
    )
    for row in rows:
        found = judged(args.stoker.split(), logs[str(row["id"])])
        said, confidence = found.get("failure"), float(str(found.get("confidence") or 0))
        cause = found.get("cause")
        line = cause.get("line") if isinstance(cause, dict) else None
        is_right = said in {row["failure"], *row.get("also", ())}
        counts["right"] += is_right
        counts["alarms"] += row["failure"] in QUIET and not is_right and said not in {*QUIET, "unknown"}
        counts["sure"] += confidence >= SURE
        counts["sure_wrong"] += confidence >= SURE and not is_right
        if row["failure"] not in {*QUIET, "unknown"}:
            counts["lines"] += row["line"] is not None
            counts["line"] += (
                row["line"] is not None and isinstance(line, int) and abs(line - row["line"]) <= 2
            )
            counts["ranks"] += row["rank"] is not None
            counts["rank"] += row["rank"] is not None and found.get("rank") == row["rank"]
        answers.append(
            {
                "id": row["id"],
                "failure": said,
                "confidence": confidence,
                "line": line,
                "rank": found.get("rank"),
            }
        )
        if not is_right:
            wrong.append(f"{row['id']}: {row['failure']} -> {said} ({confidence:.2f})")
    print(
        f"{counts['right']} of {len(rows)} classes right; {counts['alarms']} alarms; {counts['sure_wrong']} of {counts['sure']} sure ones wrong; "
        f"line within two {counts['line']} of {counts['lines']}; rank {counts['rank']} of {counts['ranks']}"
    )
    print("\n".join(wrong))
    if args.keep:
        args.keep.write_text("".join(json.dumps(answer) + "\n" for answer in answers), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
