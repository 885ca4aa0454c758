"""Is a resumed training the same one? Planted mistakes that must be named, and honest restarts that must not be accused.

Small CPU trainings (`resumed_trainings`) print what scripts print; stoker's own reader reads it; `policy.same_training` judges. The judge was made on
other seeds (--developed and more, see results/README.md) than those it is scored on. `unknown` counts as not caught.

    python bench/faults.py [--seeds 20] [--honest 340] [--developed] [--no-overlap] [--keep bench/results/faults.json]
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import command_line, surroundings, tell
from bench.resumed_trainings import (
    DEVELOPED_ON,
    FAULTS,
    FURTHER_FAULTS,
    RICHNESS,
    SCORED_ON,
    Setup,
    table,
    two_attempts,
)
from supervisor.policy.same_training.judge import judge
from supervisor.run.records import Sameness

ALL_FIELDS = "loss, lr, gradient norm, samples"
WRONG_AIM, ACCUSED_AIM = 0.95, 3


class Case(NamedTuple):
    setup: Setup
    fault: str


class Judged(NamedTuple):
    """What was said of a case, by how much its log held."""

    case: Case
    said: dict[str, tuple[str, str, str]]


def judged(case: Case) -> Judged:
    """Train, log, read, judge."""
    import torch

    torch.set_num_threads(1)
    before, after = two_attempts(case.setup, case.fault)
    said = {}
    for name, fields in RICHNESS.items():
        found = judge(table(before, fields), table(after, fields), case.setup.restart())
        said[name] = (found.result.value, found.difference.value if found.difference else "", found.text)
    return Judged(case, said)


def scores(results: Iterable[Judged], expected: dict[str, str], fields: str) -> dict[str, dict[str, int]]:
    """By kind: named rightly, called different by another name, not caught."""
    found: dict[str, dict[str, int]] = {}
    for one in results:
        result, difference, _ = one.said[fields]
        row = found.setdefault(one.case.fault, {"named": 0, "other_name": 0, "not_caught": 0})
        right = difference == expected[one.case.fault]
        row["named" if right else "other_name" if result == Sameness.DIFFERS else "not_caught"] += 1
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--honest", type=int, default=340)
    parser.add_argument("--developed", action="store_true", help="the trainings that the judge was made on")
    parser.add_argument("--no-overlap", action="store_true", help="no step is trained twice: not scored")
    parser.add_argument("--verbose", action="store_true", help="each case that was judged wrongly")
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    args = parser.parse_args()
    draw = DEVELOPED_ON if args.developed else SCORED_ON
    began = time.monotonic()
    expected = FAULTS | FURTHER_FAULTS
    cases = [
        Case(draw.faulty(fault, number), fault)
        for fault in expected
        for number in range(args.seeds)
        if args.only in fault
    ]
    if args.no_overlap:
        cases = [Case(replace(c.setup, failed=c.setup.checkpoint), c.fault) for c in cases]
    cases += [Case(draw.honest(number), "") for number in range(args.honest)]
    with get_context("spawn").Pool(2) as pool:
        results = pool.map(judged, cases, chunksize=4)
    faulty = [one for one in results if one.case.fault in FAULTS]
    further = [one for one in results if one.case.fault in FURTHER_FAULTS]
    honest = [one for one in results if not one.case.fault]
    accused = [one for one in honest if one.said[ALL_FIELDS][0] == Sameness.DIFFERS]
    by_kind = scores(faulty, expected, ALL_FIELDS)
    named = sum(row["named"] for row in by_kind.values())
    caught = named + sum(row["other_name"] for row in by_kind.values())
    if args.verbose:
        for one in [*faulty, *further, *honest]:
            result, difference, text = one.said[ALL_FIELDS]
            if one.case.fault and difference != expected[one.case.fault]:
                print(
                    f"MISSED {one.case.fault}: {result} {difference}: {text}\n       {one.case.setup}",
                    file=sys.stderr,
                )
            elif not one.case.fault and result == Sameness.DIFFERS:
                print(f"ACCUSED {difference}: {text}\n       {one.case.setup}", file=sys.stderr)
    kept: dict[str, object] = {
        **surroundings(),
        "trained_on": "developed" if args.developed else "kept apart",
        "tasks": list(draw.families),
        "steps_trained_twice": "none"
        if args.no_overlap
        else "20 to 40 of faults, 0 to 60 of honest restarts",
        "seconds": round(time.monotonic() - began),
        "faults": len(faulty),
        "named": named,
        "named_share": round(named / max(len(faulty), 1), 4),
        "caught_share": round(caught / max(len(faulty), 1), 4),
        "by_kind": by_kind,
        "missed_said": Counter(
            one.said[ALL_FIELDS][0] for one in faulty if one.said[ALL_FIELDS][0] != Sameness.DIFFERS
        ),
        "honest": len(honest),
        "accused": len(accused),
        "accused_of": Counter(f"{one.case.setup.what}: {one.said[ALL_FIELDS][1]}" for one in accused),
        "honest_said": Counter(one.said[ALL_FIELDS][0] for one in honest),
        "by_richness": {
            name: {
                "named_by_kind": {kind: row["named"] for kind, row in scores(faulty, expected, name).items()},
                "named": sum(row["named"] for row in scores(faulty, expected, name).values()),
                "accused": sum(one.said[name][0] == Sameness.DIFFERS for one in honest),
                "missed_said": Counter(
                    one.said[name][0] for one in faulty if one.said[name][0] != Sameness.DIFFERS
                ),
            }
            for name in RICHNESS
        },
        "further_kinds_not_scored": scores(further, expected, ALL_FIELDS),
    }
    tell(kept, args.keep)
    scored = not args.only and not args.no_overlap
    if scored and (named < WRONG_AIM * len(faulty) or len(accused) > ACCUSED_AIM):
        sys.exit(1)


if __name__ == "__main__":
    main()
