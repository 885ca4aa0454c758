"""What several verbs share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

EXIT_REFUSED = 3


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """The flag that says where runs lie."""
    parser.add_argument(
        "--runs-dir", metavar="DIR", help="where runs lie (default: $STOKER_RUNS_DIR, else ./runs)"
    )


def add_scope(parser: argparse.ArgumentParser) -> None:
    """The flags that say which runs are listed: the same for `stoker` and for `stoker runs`."""
    add_runs_dir(parser)
    parser.add_argument(
        "--all", action="store_true", help="also the runs in other folders that this user started"
    )


def complain(verb: str, message: str, code: int = 2) -> int:
    """One line on stderr; returns the exit code. What it quotes, of an argument or a file, may hold a secret."""
    from supervisor.text.redact import redact_text

    print(redact_text(f"stoker {verb}: {message}"), file=sys.stderr)
    return code


def refuse(verb: str, what: str, reasons: Iterable[str]) -> int:
    """Each reason on a line of its own; the exit code of what is refused before anything is done: 3."""
    for reason in reasons:
        complain(verb, f"{what}: {reason}")
    return EXIT_REFUSED


def user_settings(env: Mapping[str, str]) -> Path:
    """The user's own settings file: ``$XDG_CONFIG_HOME/stoker/config.toml``, else below ``~/.config``."""
    home = env.get("HOME") or os.path.expanduser("~")
    return Path(env.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "stoker", "config.toml")
