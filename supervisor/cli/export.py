"""Export what a run recorded: GPU samples as CSV, in the format of `nvidia-smi --query-gpu=… --format=csv`, or a metric as a chart."""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TextIO

from supervisor.cli.common import add_recorded_run, complain, named_run
from supervisor.run.events import GpuFound
from supervisor.run.journal import facts_in
from supervisor.run.paths import RunPaths
from supervisor.run.series import GPU, Sample, SeriesReader
from supervisor.text.decode import printable

MIB: Final = 2**20
# nvidia-smi's text for a value that a card does not report.
MISSING: Final = "[N/A]"


@dataclass(frozen=True, slots=True)
class Column:
    """A measured column: its name and unit in nvidia-smi, the series that has the value, and the divisor to apply."""

    name: str
    unit: str
    value: str
    per: float = 1.0
    digits: int = 0

    @property
    def head(self) -> str:
        """Return the column title as it appears in nvidia-smi's header line."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def cell(self, number: float | None, *, with_unit: bool) -> str:
        """Format a number as nvidia-smi prints it."""
        if number is None:
            return MISSING
        text = f"{number / self.per:.{self.digits}f}"
        return f"{text} {self.unit}" if with_unit and self.unit else text


# The order of the common query (timestamp, name, utilization, memory), for scripts that address columns by number.
MEASURED: Final = (
    Column("utilization.gpu", "%", "util_ratio", 0.01),
    Column("utilization.memory", "%", "memory_util_ratio", 0.01),
    Column("memory.used", "MiB", "memory_used_bytes", MIB),
    Column("memory.total", "MiB", "memory_total_bytes", MIB),
    Column("temperature.gpu", "", "temperature_c"),
    Column("power.draw", "W", "power_w", digits=2),
    Column("power.limit", "W", "power_limit_w", digits=2),
    Column("clocks.current.sm", "MHz", "sm_clock_mhz"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_recorded_run(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--gpu-csv",
        action="store_true",
        help="GPU samples, one row each, in this machine's local time",
    )
    what.add_argument("--chart", action="store_true", help="one metric as a still chart")
    parser.add_argument("--metric", default="loss", help="with --chart: which metric (default loss)")
    parser.add_argument(
        "--averages",
        action="store_true",
        help="the mean of each column, per GPU and overall, instead of the samples",
    )
    parser.add_argument(
        "--nounits", action="store_true", help="numbers without units, as with `--format=csv,nounits`"
    )


def run(args: argparse.Namespace) -> int:
    """Write the rows or draw the chart. Exit 2 if there is no such run or no GPU samples, 1 if there is nothing to draw."""
    paths = named_run(args.run, args.runs_dir)
    if args.chart:
        return _draw(paths, args.metric)
    names = {str(fact.index): fact for fact in facts_in(paths.node().journal) if isinstance(fact, GpuFound)}
    samples = _samples(paths)
    first = next(samples, None)
    if first is None:
        return complain("export", f"{paths.run_id}: it has no samples of a GPU")
    samples = chain([first], samples)
    write = _averages if args.averages else _rows
    write(sys.stdout, samples, names, with_unit=not args.nounits)
    return 0


def _draw(run: RunPaths, metric: str) -> int:
    from supervisor.views.headless.console import wants_colour
    from supervisor.views.headless.still_chart import draw, loss_points

    points = loss_points(run.node().series, metric)
    if len(points) < 2:
        return complain(
            "export", f"{run.run_id}: {len(points)} values of {metric!r} so far: nothing to draw", 1
        )
    size = shutil.get_terminal_size((80, 24))
    width, height = min(size.columns, 120), max(min(size.lines - 2, 24), 8)
    colour = wants_colour(sys.stdout, os.environ)
    print(draw(points, title=f"{metric} of {run.run_id}", width=width, height=height, colour=colour))
    return 0


def _samples(run: RunPaths) -> Iterator[Sample]:
    reader = SeriesReader(run.node().series, GPU)
    while found := reader.read():
        yield from found


def _rows(to: TextIO, samples: Iterator[Sample], names: dict[str, GpuFound], *, with_unit: bool) -> None:
    write = _writer(to)
    write(["timestamp", "name", *(column.head for column in MEASURED), "index", "uuid"])
    for sample in samples:
        cells = [column.cell(sample.v.get(column.value), with_unit=with_unit) for column in MEASURED]
        name, uuid = _known(names, sample.k)
        write([_time(sample.t), name, *cells, sample.k, uuid])


def _averages(to: TextIO, samples: Iterator[Sample], names: dict[str, GpuFound], *, with_unit: bool) -> None:
    """Write per-GPU means, then the mean over all GPUs. Samples without a value are skipped."""
    sums: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.k] = counts.get(sample.k, 0) + 1
        for column in MEASURED:
            number = sample.v.get(column.value)
            if number is not None:
                for key in (sample.k, "all"):
                    total = sums.setdefault(key, {}).setdefault(column.value, [0.0, 0.0])
                    total[0] += number
                    total[1] += 1
    counts["all"] = sum(counts.values())
    write = _writer(to)
    write(["index", "name", *(column.head for column in MEASURED), "samples", "uuid"])
    gpus = sorted((key for key in counts if key != "all"), key=lambda key: (len(key), key))
    for key in [*gpus, "all"]:
        means = {name: total / number for name, (total, number) in sums.get(key, {}).items()}
        cells = [column.cell(means.get(column.value), with_unit=with_unit) for column in MEASURED]
        name, uuid = _known(names, key)
        write([key, name, *cells, str(counts[key]), uuid])


def _writer(to: TextIO) -> Callable[[Sequence[str]], object]:
    """Return a function that writes rows in nvidia-smi's style, with a space after each comma."""
    line = csv.writer(to, lineterminator="\n")

    def write(cells: Sequence[str]) -> object:
        first, *more = map(printable, cells)
        return line.writerow([first, *(f" {cell}" for cell in more)])

    return write


def _known(names: dict[str, GpuFound], key: str) -> tuple[str, str]:
    """Return a GPU's name and UUID."""
    found = names.get(key)
    return (found and found.name) or MISSING, (found and found.uuid) or MISSING


def _time(t: float) -> str:
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(t)) + f".{int(t % 1 * 1000):03d}"
