"""A person's choices that the app saves: theme, order of the ranks."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Protocol, cast

import msgspec

from supervisor.run.jsonl import decoded_file
from supervisor.run.paths import make_private, replace_file

MOST_BYTES = 1 << 16


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The saved choices."""

    theme: str | None = None
    ranks_by: str = "rank"


class Memory(Protocol):
    """Saves a person's choices: the app."""

    kept: Kept

    def remember(self, kept: Kept) -> None:
        """Save other choices."""


def memory_of(app: object) -> Memory:
    """The app as the keeper of a person's choices."""
    return cast("Memory", app)


def load(path: Path | None) -> Kept:
    """The saved choices; defaults if the file is missing or invalid."""
    return (decoded_file(path, Kept, MOST_BYTES) if path is not None else None) or Kept()


def save(path: Path | None, kept: Kept) -> None:
    """Save them, by rename. A location that cannot be written loses the choices, never the session."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        make_private(path.parent)
        replace_file(path, msgspec.json.encode(kept) + b"\n")
