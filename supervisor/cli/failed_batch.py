"""Print the batch that a rank was working on when its run failed, as Python: the indices of its samples."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from supervisor.cli.common import add_recorded_attempt, complain, named_attempt, say, say_json
from supervisor.run.paths import RunPaths
from supervisor.run.records import UsedBatch
from supervisor.sources.measured_files import used_batches

NOT_MEASURED: Final = "no batch was measured: the script must draw its batches from a DataLoader in a run with measurements (docs/instrumentation.md)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_recorded_attempt(parser)
    parser.add_argument("--rank", type=int, metavar="R", help="the rank (default: those that failed)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per batch")


def run(args: argparse.Namespace) -> int:
    """Print the batches. Exit 1 if none was measured, 2 if there is no such run or attempt."""
    paths, attempt = named_attempt(args)
    batches = attempt.verdict.batches if attempt.verdict is not None else ()
    if args.rank is not None or not batches:
        batches = _of_ranks(paths, attempt.number, args.rank)
    if not batches:
        return complain("batch", f"{paths.run_id}: {NOT_MEASURED}", 1)
    for place, batch in enumerate(batches):
        if args.json:
            import msgspec

            say_json({"attempt": attempt.number, **msgspec.to_builtins(batch)})
        else:
            say(*[""] * bool(place), *_python(batch, several=len({*batches}) > 1))
    return 0


def _of_ranks(paths: RunPaths, number: int, rank: int | None) -> tuple[UsedBatch, ...]:
    """Return the batches of all ranks or of one, from the files of the attempt. It may still be alive."""
    found = used_batches(paths.node(node).attempt(number).telemetry for node in paths.nodes())
    return tuple(batch for each, used in sorted(found.items()) if rank in {None, each} for batch in used)


def _python(batch: UsedBatch, *, several: bool) -> Iterator[str]:
    """Yield comments that describe a batch, and the assignment of its indices."""
    from supervisor.views.wording.phrases import used_batch_lines

    yield f"# {used_batch_lines([batch])[0]} (both counted from 0)"
    name = f"indices_{batch.rank}_{batch.index}" if several else "indices"
    if batch.indices is None:
        yield f"{name} = None  # the dataset has no indices, or its workers return batches in any order"
        return
    cut = f"  # the first of {batch.size}" if (batch.size or 0) > len(batch.indices) else ""
    yield f"{name} = {list(batch.indices)}{cut}"
