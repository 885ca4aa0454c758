"""Text to train on as one row of bytes: JSON lines, and the standard library's source."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer.config import DataError
from trainer.data.text import jsonl_documents
from trainer.data.tokenizer import SEPARATOR

# Each rank holds all of the text in memory.
MOST_JSONL_BYTES: Final = 256 << 20


def jsonl_bytes(path: str) -> npt.NDArray[np.uint8]:
    """Return the texts of a JSON lines file, joined by newlines.

    Raises:
        DataError: a broken line, by file and number; or a file of more than `MOST_JSONL_BYTES`.
        OSError: the file cannot be read.
    """
    if os.path.getsize(path) > MOST_JSONL_BYTES:
        raise DataError(
            f"{path}: larger than {MOST_JSONL_BYTES >> 20} MiB, which each rank would hold in memory: make a token "
            f"file: python -m {__package__} prepare --out FOLDER {path}"
        )
    return np.frombuffer(SEPARATOR.join(jsonl_documents(path)), np.uint8)


# -- text that every machine has -------------------------------------------------------------------

# Not everywhere installed, generated, or no prose: leaving them out makes machines more alike.
SKIPPED = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"})


def embedded(limit_bytes: int) -> npt.NDArray[np.uint8]:
    """Real text that every machine has: the first `limit_bytes` of the standard library's .py files, in a fixed order, newline-joined."""
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
