"""Say where the time of a training step goes, from what the ranks of a run measured."""

from __future__ import annotations

import argparse
from typing import Final

from supervisor.cli.common import add_recorded_attempt, complain, named_attempt, say, say_json
from supervisor.policy.health.slow_steps import LEAST_SHARE, LEAST_STEPS, LostTime, RankTimes, why_slow
from supervisor.run.paths import RunPaths
from supervisor.sources.measured_files import measured_ranks, rank_records

NOT_MEASURED: Final = (
    f"fewer than {LEAST_STEPS} steps were measured (docs/instrumentation.md says when nothing is)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_recorded_attempt(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the findings. Exit 1 if too little was measured, 2 if there is no such run or attempt."""
    paths, attempt = named_attempt(args)
    number = attempt.number
    ranks = measured_times(paths, number)
    if all(times.steps < LEAST_STEPS for times in ranks.values()):
        return complain("why-slow", f"{paths.run_id}: {NOT_MEASURED}", 1)
    found = why_slow(ranks)
    if args.json:
        import msgspec

        say_json({"run": paths.run_id, "attempt": number, "findings": msgspec.to_builtins(found)})
        return 0
    first = next(iter(ranks.values()))
    each_s = first.total("step_time_s") / max(first.steps, 1)
    say(f"{paths.run_id} (attempt {number}): {first.steps:,} steps of {each_s:.3g} s on {len(ranks)} ranks")
    nothing = f"  nothing found that costs {100 * LEAST_SHARE:.0f} % of the time or more"
    say(*(map(finding_text, found) if found else [nothing]))
    return 0


def measured_times(paths: RunPaths, number: int) -> dict[int, RankTimes]:
    """Return the measured times of all ranks of an attempt, on all nodes."""
    found: dict[int, RankTimes] = {}
    for node in paths.nodes():
        folder = paths.node(node).attempt(number).telemetry
        for rank in measured_ranks(folder):
            times = found.setdefault(rank, RankTimes())
            for record in rank_records(folder, rank):
                times.add(record)
    return dict(sorted(found.items()))


def finding_text(found: LostTime) -> str:
    """Return a finding as a line: its share of the wall time, the measurement, and the setting."""
    return f"  {100 * found.share:3.0f} %  {found.text}{f': {found.setting}' if found.setting else ''}"
