"""Draw a run's loss (or another metric) as a still chart."""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from supervisor.cli.common import add_recorded_run, complain, named_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_recorded_run(parser)
    parser.add_argument("--metric", default="loss", help="which series (default loss)")


def run(args: argparse.Namespace) -> int:
    """Print the chart."""
    from supervisor.views.headless.console import wants_colour
    from supervisor.views.headless.still_chart import draw, loss_points

    paths = named_run(args.run, args.runs_dir)
    points = loss_points(paths.node().series, args.metric)
    if len(points) < 2:
        return complain(
            "chart", f"{paths.run_id}: {len(points)} values of {args.metric!r} so far: nothing to draw", 1
        )
    size = shutil.get_terminal_size((80, 24))
    title = f"{args.metric} of {paths.run_id}"
    print(
        draw(
            points,
            title=title,
            width=min(size.columns, 120),
            height=max(min(size.lines - 2, 24), 8),
            colour=wants_colour(sys.stdout, os.environ),
        )
    )
    return 0
