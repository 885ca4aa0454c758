"""Print the metrics found in a log: step, loss, learning rate, throughput, and more.

One JSON object a line in which something was found (--json), or CSV (--csv).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

from supervisor.cli.common import complain
from supervisor.sources.metrics import MetricReader, MetricSample
from supervisor.text.decode import clean, plain_chunks
from supervisor.text.lines import LineSplitter
from supervisor.text.prefixes import origin_of_path

_GIB = 1 << 30
_COLUMNS = (
    "step", "total_steps", "epoch", "loss", "lr", "grad_norm", "tokens_per_sec", "samples_per_sec", "step_time_s", "mfu",
    "memory_gib", "val_loss", "eta_s",
)  # fmt: skip
_READ_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("path", metavar="PATH", help="a log file, plain or gzip, or - for standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="one JSON object a metric line (the default off a terminal)"
    )
    form.add_argument("--csv", action="store_true", help="comma-separated values with a header")


def run(args: argparse.Namespace) -> int:
    """Read the log and print. 0, also when nothing was found; 2 when it cannot be read."""
    try:
        with _open(args.path) as file:
            _print(_samples(file, args.path), as_csv=args.csv, as_json=args.json or not sys.stdout.isatty())
    except IsADirectoryError:
        return complain("metrics", f"{args.path}: is a folder: name one log file in it")
    except BrokenPipeError:
        raise
    except OSError as error:
        return complain(
            "metrics", f"{args.path}: {error.strerror or error}: name a log file that can be read"
        )
    return 0


def _open(path: str) -> IO[bytes]:
    if path == "-":
        return os.fdopen(os.dup(0), "rb")
    return open(path, "rb")


def _samples(file: IO[bytes], path: str) -> Iterator[tuple[int, MetricSample]]:
    """Row (0-based) and sample of each line that reports something."""
    reader = MetricReader()
    origin = origin_of_path(os.path.abspath(path)) if path != "-" else origin_of_path("")
    whose = origin.rank
    splitter = LineSplitter()
    chunks = iter(lambda: file.read(_READ_BYTES), b"")
    for chunk in plain_chunks(chunks):
        for line in splitter.feed(chunk):
            if (sample := reader.feed(clean(line.raw))) is not None:
                yield line.row, _of_rank(sample, whose)
    last = splitter.finish()
    if last is not None and (sample := reader.feed(clean(last.raw))) is not None:
        yield last.row, _of_rank(sample, whose)


def _of_rank(sample: MetricSample, rank: int | None) -> MetricSample:
    if rank is None or sample.rank is not None:
        return sample
    return MetricSample(sample.values, sample.other, rank)


def _print(samples: Iterator[tuple[int, MetricSample]], *, as_csv: bool, as_json: bool) -> None:
    if as_csv:
        _print_csv(samples)
        return
    for row, sample in samples:
        record = record_of(row, sample)
        if as_json:
            print(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        else:
            print(_for_people(record))
    sys.stdout.flush()


def _print_csv(samples: Iterator[tuple[int, MetricSample]]) -> None:
    """The header stands even when nothing is found only if something was: an empty log prints nothing."""
    writer = None
    for row, sample in samples:
        record = record_of(row, sample)
        if writer is None:
            writer = csv.DictWriter(
                sys.stdout, ["line", "rank", *_COLUMNS], extrasaction="ignore", lineterminator="\n"
            )
            writer.writeheader()
        writer.writerow(record)
    sys.stdout.flush()


def record_of(row: int, sample: MetricSample) -> dict[str, Any]:
    """One line of the wire: what `sample` says, with memory in GiB and NaN and infinities as strings."""
    record: dict[str, Any] = {"line": row, "rank": sample.rank}
    values = dict(sample.values)
    memory = values.pop("memory_used_bytes", None)
    if memory is not None:
        values["memory_gib"] = float(f"{memory / _GIB:.9g}")
    for name in _COLUMNS:
        if name in values:
            record[name] = _plain(values[name])
    if sample.other:
        record["other"] = {name: _plain(value) for name, value in sample.other.items()}
    return record


def _plain(value: float) -> float | int | str:
    """A number that strict JSON can hold; NaN and infinities by name."""
    if isinstance(value, int) or math.isfinite(value):
        return value if isinstance(value, int) else float(f"{value:.12g}")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _for_people(record: dict[str, Any]) -> str:
    parts = [f"line {record['line'] + 1}:"]
    if record["rank"] is not None:
        parts.append(f"rank {record['rank']}")
    parts += [
        f"{name} {record[name]:g}" if not isinstance(record[name], str) else f"{name} {record[name]}"
        for name in _COLUMNS
        if name in record
    ]
    parts += [f"{name}={value}" for name, value in record.get("other", {}).items()]
    return "  ".join(parts)
