"""Real text that every machine has: the source of Python's own standard library, as bytes."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

# Not everywhere installed, generated, or no prose: leaving them out makes machines more alike.
SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"})


def embedded(limit_bytes: int) -> npt.NDArray[np.uint8]:
    """The first `limit_bytes` of the standard library's .py files, in a fixed order, newline-joined."""
    parts: list[bytes] = []
    size = 0
    for path in _sources(sysconfig.get_paths()["stdlib"]):
        with open(path, "rb") as file:
            data = file.read(limit_bytes - size)
        parts.append(data + b"\n")
        size += len(data) + 1
        if size >= limit_bytes:
            break
    return np.frombuffer(b"".join(parts)[:limit_bytes], dtype=np.uint8)


def _sources(root: str) -> Iterator[str]:
    """Paths of .py files, sorted by name within each folder, files before sub-folders."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in SKIPPED)
        for name in sorted(files):
            if name.endswith(".py"):
                yield os.path.join(folder, name)
