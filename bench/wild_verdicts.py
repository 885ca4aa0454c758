"""Verdicts on whole logs of public repositories: scores, and whether the stated confidence holds by kind of evidence.

    python bench/wild_verdicts.py TEXTS [MANIFEST] [--set second …] [--show] [--keep bench/results/wild_verdicts.json]

MANIFEST (tests/corpus/data/wild/failures.jsonl) names logs by repository, path and blob, with the labels that their readers wrote; the texts are not
in the project: TEXTS/<blob> are the files as `git cat-file blob` gives them. A log whose text is not there is counted and passed over.

A kind of evidence is what limits the confidence (`explanation.limits` of ``diagnose --explain --json``), else how firm the chosen line is. The share
of right verdicts of a kind is set beside the confidence that was stated, and beside what the *other* repositories would have forecast for it
(leave one repository out, one success and one failure added): where the forecast differs much from the share, the kind says too little to be calibrated.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import ROOT, command_line, surroundings, tell
from supervisor.cli.main import main as stoker
from supervisor.diagnosis.scan.signature_tables import Strength

MANIFEST = ROOT / "tests" / "corpus" / "data" / "wild" / "failures.jsonl"
SURE = 0.9
LINES_OFF = 2
NO_FAILURE = ("healthy", "unknown")
_STRENGTHS = {level.word: level for level in Strength}
_BANDS = ((Strength.CLEAR, "firm"), (Strength.PLAIN, "plain"))


@dataclass(frozen=True, slots=True)
class Scored:
    """One log: its label, the verdict with its explanation."""

    row: Mapping[str, Any]
    verdict: Mapping[str, Any]

    @property
    def right(self) -> bool:
        """Whether the class is the label's, or one that its reader accepted."""
        return self.verdict["failure"] in (self.row["cls"], *self.row["accept"])

    @property
    def confidence(self) -> float:
        """As stated."""
        return float(self.verdict["confidence"])

    @property
    def kind(self) -> str:
        """What limits the confidence most (``explanation.limits``), or how firm a line is that nothing limits; else the rule."""
        explanation = self.verdict["explanation"]
        if explanation["limits"]:
            return str(explanation["limits"][0]["name"])
        line = (self.verdict["cause"] or {}).get("line")
        words = (item["strength"] for item in explanation["candidates"] if item["line"] == line)
        strength = max((_STRENGTHS.get(word, 0) for word in words), default=None)
        if strength is None or self.verdict["failure"] in NO_FAILURE:
            return str(explanation["rule"]["name"])
        return "last word, " + next((name for level, name in _BANDS if strength >= level), "weak")


def verdicts_of(rows: Sequence[Mapping[str, Any]], texts: Path) -> Iterator[Scored]:
    """Each log judged as a file of its own under a name that says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.txt")
        for row in rows:
            log.write_bytes((texts / row["blob"]).read_bytes())
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                stoker(["diagnose", "--json", "--explain", str(log)])
            yield Scored(row, json.loads(printed.getvalue()))


def interval(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not total:
        return 0.0, 1.0
    z, share = 1.96, right / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return round(max(0.0, middle - half), 3), round(min(1.0, middle + half), 3)


def share(outcomes: Iterable[bool]) -> dict[str, Any]:
    """How many of how many, with the interval."""
    found = list(outcomes)
    return {"right": sum(found), "of": len(found), "interval": interval(sum(found), len(found))}


def scores(found: Sequence[Scored]) -> dict[str, Any]:
    """The figures of docs/generalisation.md."""
    failing = [one for one in found if one.row["cls"] not in NO_FAILURE]
    sure = [one for one in found if one.confidence >= SURE]
    return {
        "class": share(one.right for one in found),
        "alarms": share(
            one.verdict["failure"] not in NO_FAILURE for one in found if one.row["cls"] == "healthy"
        ),
        "wrong and sure": share(not one.right for one in sure),
        "line": share(_line_is_right(one) for one in failing if one.row["cause_line"]),
        "rank": share(
            one.verdict["rank"] == one.row["first_bad_rank"]
            for one in failing
            if one.row["first_bad_rank"] is not None
        ),
    }


def _line_is_right(one: Scored) -> bool:
    line = (one.verdict["cause"] or {}).get("line")
    return line is not None and abs(line - one.row["cause_line"]) <= LINES_OFF


def calibration(found: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """By kind of evidence: the share that is right, the mean confidence stated, and the mean forecast by other repositories."""
    by_kind: dict[str, list[Scored]] = collections.defaultdict(list)
    for one in found:
        by_kind[one.kind].append(one)
    rows = {}
    for kind, ones in sorted(by_kind.items(), key=lambda item: -len(item[1])):
        forecasts = []
        for one in ones:
            others = [other.right for other in ones if other.row["repo"] != one.row["repo"]]
            forecasts.append((sum(others) + 1) / (len(others) + 2))
        rows[kind] = {
            **share(one.right for one in ones),
            "repositories": len({one.row["repo"] for one in ones}),
            "stated": round(statistics.fmean(one.confidence for one in ones), 3),
            "forecast": round(statistics.fmean(forecasts), 3),
        }
    return rows


def brier(found: Sequence[Scored]) -> float:
    """The mean square of what the stated confidence misses."""
    return round(statistics.fmean((one.confidence - one.right) ** 2 for one in found), 4)


def main() -> int:
    """Score and calibrate; print and keep."""
    parser = command_line(__doc__)
    parser.add_argument("texts", type=Path, help="a folder of files named by their blobs")
    parser.add_argument("manifest", type=Path, nargs="?", default=MANIFEST)
    parser.add_argument("--set", action="append", help="only these sets of the manifest")
    parser.add_argument("--show", action="store_true", help="list what is wrong")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.manifest.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if args.set is None or row["set"] in args.set]
    there = [row for row in rows if (args.texts / str(row["blob"])).is_file()]
    found = list(verdicts_of(there, args.texts))
    if not found:
        parser.error(f"none of {len(rows)} texts is in {args.texts}: they are named by their blobs")
    for one in found if args.show else ():
        if not one.right:
            print(
                one.row["repo"],
                one.row["path"],
                one.row["cls"],
                "read as",
                one.verdict["failure"],
                one.confidence,
                one.kind,
            )
    report = {
        **surroundings(),
        "logs": len(found),
        "repositories": len({one.row["repo"] for one in found}),
        "no text": len(rows) - len(there),
        "scores": {
            name: scores([one for one in found if one.row["set"] == name])
            for name in dict.fromkeys(row["set"] for row in there)
        },
        "brier": brier(found),
        "by evidence": calibration(found),
    }
    tell(report, args.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
