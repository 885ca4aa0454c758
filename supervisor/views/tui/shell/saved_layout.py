"""What the app remembers of a person from one time to the next: theme, order of the ranks."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Protocol, cast

import msgspec

from supervisor.run.jsonl import decoded_file
from supervisor.run.paths import make_private, replace_file

MOST_BYTES = 1 << 16


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Choices."""

    theme: str | None = None
    ranks_by: str = "rank"


class Memory(Protocol):
    """What remembers a person's choices: the app."""

    kept: Kept

    def remember(self, kept: Kept) -> None:
        """Keep other choices for the next time."""


def memory_of(app: object) -> Memory:
    """The app as what remembers a person's choices."""
    return cast("Memory", app)


def load(path: Path | None) -> Kept:
    """What was kept; nothing where there is no file, or one that makes no sense."""
    return (decoded_file(path, Kept, MOST_BYTES) if path is not None else None) or Kept()


def save(path: Path | None, kept: Kept) -> None:
    """Keep it, by rename. A place that cannot be written costs the memory, never the session."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        make_private(path.parent)
        replace_file(path, msgspec.json.encode(kept) + b"\n")
