"""Print the metrics found in a log: step, loss, learning rate, throughput, and more.

One JSON object a line in which something was found (--json), or CSV (--csv). Of a folder or a run, `file` says which log.
In both, `line` counts from 0; what a terminal shows, and `stoker diagnose`, count from 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from supervisor.cli.common import complain
from supervisor.cli.diagnosing.job_logs import BadInputError, path_or_run, read_jobs
from supervisor.diagnosis.evidence import LogSource
from supervisor.sources.metrics import FoundSample, MetricReader, MetricSample
from supervisor.text.decode import HEAD_BYTES, is_binary, plain_chunks
from supervisor.text.lines import Line, LineSplitter
from supervisor.text.prefixes import origin_of_path

_GIB = 1 << 30
_COLUMNS = (
    "step", "total_steps", "epoch", "loss", "lr", "grad_norm", "tokens_per_sec", "samples_per_sec", "step_time_s", "mfu",
    "memory_gib", "val_loss", "eta_s",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a log, plain or gzip; a folder of logs; a run (directory or id), its last attempt; - for stdin",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        action="store_true",
        help="one JSON object a metric line (the default off a terminal); `line` counts from 0, unlike diagnose's",
    )
    form.add_argument(
        "--csv",
        action="store_true",
        help="comma-separated values with a header; `line` counts from 0, unlike diagnose's",
    )


class _Found(NamedTuple):
    """What one line reports. `file`: its log, where several are read."""

    file: str | None
    row: int
    sample: MetricSample


def run(args: argparse.Namespace) -> int:
    """Read the log or logs and print. 0, also when nothing was found; 2 when a path cannot be read."""
    path = path_or_run(args.path)
    try:
        ((_, _, job),) = read_jobs([path])
        found = _found(job.logs, path if os.path.isdir(path) else None)
        _print(found, as_csv=args.csv, as_json=args.json or not sys.stdout.isatty())
    except BadInputError as error:
        return complain("metrics", str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        return complain("metrics", f"{path}: {error.strerror or error}: name a log file that can be read")
    return 0


def _found(logs: Sequence[LogSource], root: str | None) -> Iterator[_Found]:
    """What the logs report, one after the other; the names of several are told below `root`."""
    one_node = len({log.origin.node for log in logs}) == 1
    for log in logs:
        whose = origin_of_path(os.path.abspath(log.path)) if root is None and log.path != "-" else log.origin
        rank = whose.rank if whose.rank is not None or not one_node else whose.local_rank
        name = None if root is None else os.path.relpath(log.path, root)
        try:
            for row, sample in _samples(log.chunks, log.path):
                yield _Found(name, row, _of_rank(sample, rank))
        except BadInputError:
            if root is None:
                raise  # in a folder, a file that is no log is passed over


def _samples(chunks: Iterable[bytes], path: str) -> Iterator[tuple[int, MetricSample]]:
    """Row (0-based) and sample of each line that reports something."""
    reader = MetricReader()
    splitter = LineSplitter()
    for chunk in plain_chunks(_text_only(chunks, path)):
        lines = splitter.feed(chunk)
        yield from _reporting(lines, reader.read([line.raw for line in lines]))
    last = splitter.finish()
    if last is not None:
        yield from _reporting([last], reader.read([last.raw]))


def _reporting(
    lines: Sequence[Line], samples: Sequence[MetricSample | None]
) -> Iterator[tuple[int, MetricSample]]:
    for line, sample in zip(lines, samples, strict=True):
        if sample is not None:
            yield line.row, sample


def _text_only(chunks: Iterable[bytes], path: str) -> Iterator[bytes]:
    """The chunks, if the first looks like a log's: a checkpoint or an image is refused."""
    first = True
    for chunk in chunks:
        if first and is_binary(chunk[:HEAD_BYTES]):
            raise BadInputError(f"{path}: is a binary file, no log: name the log that the program wrote")
        first = False
        yield chunk


def _of_rank(sample: MetricSample, rank: int | None) -> MetricSample:
    if rank is None or sample.rank is not None:
        return sample
    return FoundSample(sample.values, sample.other, rank)


def _print(found: Iterator[_Found], *, as_csv: bool, as_json: bool) -> None:
    if as_csv:
        _print_csv(found)
        return
    encode = json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":")
    ).encode  # json.dumps would make one a line
    for file, row, sample in found:
        record = record_of(row, sample)
        if as_json:
            if file is not None:
                record = {"file": file, **record}
            print(encode(record))
        else:
            print(_for_people(record, file))
    sys.stdout.flush()


def _print_csv(found: Iterator[_Found]) -> None:
    """The header stands only over rows: a log without metrics prints nothing."""
    writer = None
    for file, row, sample in found:
        record: dict[str, Any] = record_of(row, sample) | ({} if file is None else {"file": file})
        if writer is None:
            names = ["line", "rank", *_COLUMNS]
            writer = csv.DictWriter(
                sys.stdout,
                names if file is None else ["file", *names],
                extrasaction="ignore",
                lineterminator="\n",
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


def _for_people(record: dict[str, Any], file: str | None) -> str:
    parts = [f"{file}: line {record['line'] + 1}:" if file is not None else f"line {record['line'] + 1}:"]
    if record["rank"] is not None:
        parts.append(f"rank {record['rank']}")
    parts += [
        f"{name} {record[name]:g}" if not isinstance(record[name], str) else f"{name} {record[name]}"
        for name in _COLUMNS
        if name in record
    ]
    parts += [f"{name}={value}" for name, value in record.get("other", {}).items()]
    return "  ".join(parts)
