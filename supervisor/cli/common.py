"""What several verbs share."""

from __future__ import annotations

import argparse
import sys


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """The flag that says where runs lie."""
    parser.add_argument(
        "--runs-dir", metavar="DIR", help="where runs lie (default: $STOKER_RUNS_DIR, else ./runs)"
    )


def complain(verb: str, message: str, code: int = 2) -> int:
    """One line on stderr; returns the exit code."""
    print(f"stoker {verb}: {message}", file=sys.stderr)
    return code
