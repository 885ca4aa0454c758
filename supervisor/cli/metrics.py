"""Print the metrics found in a log: step, loss, learning rate, throughput, and more.

Print one JSON object for each line that contains a metric. For a folder or a run, `file` names the log.
`line` counts from 0; `stoker diagnose` counts from 1.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from supervisor.cli.common import complain
from supervisor.cli.job_logs import READING, BadInputError, path_or_run, read_jobs
from supervisor.diagnosis.evidence import LogSource
from supervisor.run.regular import read_regular
from supervisor.sources.metrics import Columns, MetricReader, MetricSample, standing_states
from supervisor.sources.metrics.names import Field
from supervisor.sources.metrics.progress_bars import NOTHING_COUNTED
from supervisor.sources.metrics.tokens import GIB
from supervisor.sources.tail.follow import Batch, LineFeed
from supervisor.text.decode import HEAD_BYTES, ascii_json, is_binary, plain_chunks
from supervisor.text.prefixes import origin_of_path

COLUMNS = (
    "step", "total_steps", "epoch", "loss", "lr", "grad_norm", "tokens_per_sec", "samples_per_sec", "step_time_s", "mfu",
    "memory_gib", "val_loss", "eta_s", "epoch_time_s", "data_wait_s", "compute_s", "memory_peak_bytes",
    "optimizer_step",
)  # fmt: skip
_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}
_Cell = float | str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a log (plain or gzip), a folder of logs, a run (directory or id; its last attempt), or - for stdin",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per line with metrics (the default); `line` counts from 0, in diagnose from 1",
    )


def run(args: argparse.Namespace) -> int:
    """Read the logs and print their metrics. Exit 0 even if there are none; 2 if a path cannot be read."""
    path = path_or_run(args.path)
    try:
        ((_, attempt, job),) = read_jobs([path])
        pieces = _pieces(job.logs, path if os.path.isdir(path) else None)
        if attempt is not None:
            pieces = chain(pieces, _measured(Path(path), attempt))
        encode = msgspec.json.Encoder().encode_lines
        lines = (ascii_json(encode(records).decode()).encode() for records in pieces)
        with READING.reported("metrics", path):
            for text in lines:
                try:
                    sys.stdout.buffer.write(text)
                    sys.stdout.buffer.flush()  # a reader may follow the pipe live
                except OSError as error:
                    error.filename = "stdout"
                    raise
    except BadInputError as error:
        return complain("metrics", error)
    except OSError as error:
        if error.filename == "stdout" or isinstance(error, BrokenPipeError):
            raise
        return complain("metrics", f"{path}: {error.strerror or error}: name a log file that can be read")
    return 0


def _pieces(logs: Sequence[LogSource], root: str | None) -> Iterator[list[msgspec.Struct]]:
    """Yield the records of each log in turn, in chunks of about 1 MiB. With several logs, file names are relative to `root`."""
    one_node = len({log.origin.node for log in logs}) == 1
    for log in logs:
        whose = origin_of_path(os.path.abspath(log.path)) if root is None and log.path != "-" else log.origin
        rank = whose.rank if whose.rank is not None or not one_node else whose.local_rank
        name = None if root is None else os.path.relpath(log.path, root)
        reader = MetricReader()
        row = 0
        try:
            for text in _texts(plain_chunks(_text_only(log.chunks, log.path))):
                found = reader.read_columns(text.lines)
                if text.rows is not None:
                    found = text.without_overdrawn(found)
                rows = [_records(name, text.of_lines(at, row), at, rank, columns) for at, columns in found]
                yield [record for _, record in sorted(chain(*rows), key=itemgetter(0))]
                row += text.newlines
        except BadInputError:
            if root is None:
                raise  # skip files that are not logs in a folder


def _measured(root: Path, attempt: int) -> Iterator[list[msgspec.Struct]]:
    """Yield the instrumentation's measurements for one attempt of a run, one record per line of a rank's file.

    If the script prints no step, `step` is the optimizer's count. Otherwise, that count is in `optimizer_step`.
    """
    from supervisor.run.journal import read_state
    from supervisor.run.paths import RunPaths
    from supervisor.sources.telemetry import measured_record, step_values

    view = read_state(RunPaths(root).node().journal).find(attempt)
    batch = view.measured if view is not None else None
    name = "step" if batch is not None and batch.counts_steps else "optimizer_step"
    files = root.glob(f"nodes/*/attempts/{attempt}/telemetry/measured*.jsonl*")
    # A file that grew too large was renamed to `….1`, which is older than the file without the suffix.
    for path in sorted(
        files, key=lambda each: (each.with_name(each.name.removesuffix(".1")), -len(each.name))
    ):
        file = os.path.relpath(path, root)
        records: list[tuple[int, msgspec.Struct]] = []
        for row, line in enumerate(read_regular(path, 1 << 24).splitlines()):
            record = measured_record(line) or {}
            values = step_values(record, batch) if record.get("kind") in {"step", "timing"} else {}
            if values and (step := record.get("optimizer_step") or record.get("step")):
                found = {key: (value,) for key, value in {name: step, **values}.items()}
                records += _records(file, [row], [row], record.get("rank"), Columns(found))
        yield [record for _, record in records]


class _Text(NamedTuple):
    """Lines of text, including the successive states of redrawn lines.

    `rows` gives each entry's line number relative to the start of this text, or None if all lines are whole.
    """

    lines: Sequence[bytes]
    newlines: int
    rows: Sequence[int] | None = None

    def of_lines(self, places: Sequence[int], first: int) -> Sequence[int]:
        """Return the log lines at these positions, where `first` is the line at which the text starts."""
        rows = self.rows
        return [first + place for place in places] if rows is None else [first + rows[at] for at in places]

    def without_overdrawn(
        self, found: Iterable[tuple[Sequence[int], Columns]]
    ) -> Iterator[tuple[Sequence[int], Columns]]:
        """Keep the last state of each line and the states that report a loss."""
        rows, blocks = self.rows or (), list(found)
        cells = [
            (place, columns.step(at), loss)
            for places, columns in blocks
            for at, (place, loss) in enumerate(zip(places, columns.losses(len(places)), strict=True))
        ]
        cells.sort(key=itemgetter(0))
        stands = standing_states([(step, loss) for _, step, loss in cells])
        kept_places = {place for (place, *_), kept in zip(cells, stands, strict=True) if kept}
        kept_places |= {place for place, row in enumerate(rows) if rows[place + 1 : place + 2] != [row]}
        for places, columns in blocks:
            kept = [at for at, place in enumerate(places) if place in kept_places]
            if kept:
                yield columns.only(places, kept)


def _texts(chunks: Iterable[bytes]) -> Iterator[_Text]:
    """Yield the lines of each chunk. Lines that span chunks are joined, up to a maximum length."""
    feed = LineFeed("")
    for chunk in chunks:
        first, last = chunk.find(b"\n") + 1, chunk.rfind(b"\n") + 1
        if chunk.count(b"\r") > chunk.count(b"\r\n"):
            first = last = len(chunk)
        yield _of(feed.feed(chunk[:first]))
        if first < last:
            lines = chunk[first : last - 1].split(b"\n")
            yield _Text(lines, len(lines))
        if last < len(chunk):
            yield _of(feed.feed(chunk[last:]))
    if (batch := feed.finish()) is not None:
        yield _of(batch)


def _of(batch: Batch) -> _Text:
    if not batch.drawn:
        return _Text([line.raw for line in batch.lines], len(batch.lines))
    # A new progress bar shows the previous epoch's loss.
    begun = tuple(state for state in batch.drawn if NOTHING_COUNTED.encode() not in state.raw)
    both = batch._replace(drawn=begun).in_order()
    first = min(line.number for line in (*batch.lines[:1], *batch.drawn[:1]))
    return _Text([line.raw for line in both], len(batch.lines), [line.number - first for line in both])


def _text_only(chunks: Iterable[bytes], path: str) -> Iterator[bytes]:
    """Yield the chunks if the first one looks like text. Refuse a checkpoint or an image."""
    first = True
    for chunk in chunks:
        if first and is_binary(chunk[:HEAD_BYTES]):
            raise BadInputError(f"{path}: is a binary file, no log: name the log that the program wrote")
        first = False
        yield chunk


def _records(
    file: str | None, rows: Sequence[int], places: Sequence[int], rank: int | None, found: Columns
) -> Iterator[tuple[int, msgspec.Struct]]:
    """Yield records for log lines (`rows`) of the same format, each with its position in the chunk. `rank` is the log's rank."""
    columns = {name: _printed(name, column) for name, column in found.values.items()}
    if Field.MEMORY in columns:
        columns["memory_gib"] = columns.pop(Field.MEMORY)
    other: Sequence[dict[str, _Cell] | None] = [None] * len(rows)
    if found.other:
        own = {name: _printed(name, column) for name, column in found.other.items()}
        other = [
            {name: cell for name, cell in zip(own, cells, strict=True) if cell is not None} or None
            for cells in zip(*own.values(), strict=True)
        ]
    ranks = found.ranks or [None] * len(rows)
    if rank is not None:
        ranks = [rank if one is None else one for one in ranks]
    names = tuple(name for name in COLUMNS if name in columns)
    files = [] if file is None else [repeat(file)]
    make = _record_type(names, has_file=file is not None)
    cells = [columns[name] for name in names]
    return zip(places, map(make, *files, rows, ranks, *cells, other), strict=False)


def _printed(name: str, column: Sequence[float | None]) -> Sequence[_Cell]:
    """Return a column for output: memory in GiB, and NaN and infinities as strings, because strict JSON does not allow them."""
    try:
        is_plain = math.isfinite(sum(column))  # type: ignore[arg-type]
    except TypeError:
        is_plain = False
    if name == Field.MEMORY:
        return [_gib(value) if value is not None else None for value in column]
    if is_plain:
        return column
    return [value if value is None or math.isfinite(value) else _NAMES.get(value, "NaN") for value in column]


@lru_cache(maxsize=1024)  # a run's peak is the same on most of its lines
def _gib(used_bytes: float) -> float:
    return float(f"{used_bytes / GIB:.9g}")


@lru_cache(maxsize=1024)
def _record_type(names: tuple[str, ...], *, has_file: bool) -> type[msgspec.Struct]:
    """Return the type of an output line. Fields that are None are omitted, except for the rank."""
    kept = ["file", "line", "rank"] if has_file else ["line", "rank"]
    return msgspec.defstruct(
        "Record", [*kept, *((name, Any, None) for name in (*names, "other"))], omit_defaults=True, gc=False
    )


def record_of(row: int, sample: MetricSample) -> dict[str, Any]:
    """Return a sample's `--json` output."""
    values = {name: (value,) for name, value in sample.values.items()}
    other = {name: (value,) for name, value in sample.other.items()}
    ((_, record),) = _records(None, [row], [0], None, Columns(values, other, (sample.rank,)))
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
