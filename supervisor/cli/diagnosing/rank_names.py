"""Whether a log names ranks at all: "rank 0" of one that does not is only an assumption."""

from __future__ import annotations

import os

from supervisor.run.regular import open_regular
from supervisor.text.decode import HEAD_BYTES, clean, is_packed
from supervisor.text.prefixes import split_prefix

NAMED_BYTES = 1 << 18
_AT_END = " on rank 0"


def names_ranks(path: str) -> bool:
    """Whether one of a log's last lines names its rank; a packed log is taken to.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        if is_packed(file.read(HEAD_BYTES)):
            return True
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - NAMED_BYTES, 0))
        lines = file.read(NAMED_BYTES).splitlines()
    origins = (split_prefix(clean(line))[0] for line in lines)
    return any(origin.rank is not None or origin.local_rank is not None for origin in origins)


def without_rank(title: str) -> str:
    """A headline without "rank 0", which stands for a job of one process."""
    if title.startswith("Rank 0 "):
        return f"A rank {title.removeprefix('Rank 0 ')}"
    head, likely, tail = title.partition(" (likely")
    return f"{head.removesuffix(_AT_END)}{likely}{tail}"
