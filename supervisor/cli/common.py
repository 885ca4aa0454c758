"""What several verbs share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """The flag that says where runs lie."""
    parser.add_argument(
        "--runs-dir", metavar="DIR", help="where runs lie (default: $STOKER_RUNS_DIR, else ./runs)"
    )


def complain(verb: str, message: str, code: int = 2) -> int:
    """One line on stderr; returns the exit code."""
    print(f"stoker {verb}: {message}", file=sys.stderr)
    return code


def user_settings(env: Mapping[str, str]) -> Path:
    """The user's own settings file: ``$XDG_CONFIG_HOME/stoker/config.toml``, else below ``~/.config``."""
    home = env.get("HOME") or os.path.expanduser("~")
    return Path(env.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "stoker", "config.toml")
