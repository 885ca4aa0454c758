"""JSON lines as one row of bytes, whatever their size: what is large goes through a file of its own, mapped.

The texts are decoded once a node, into the user's cache folder; later runs, other ranks and restarts map that file.
Its name holds the source's path, size and time of change, so that an edited source is read again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from trainer.config import DataError
from trainer.data.text import jsonl_documents
from trainer.data.tokenizer import SEPARATOR

# Up to here the texts are simply held: no file is left behind for a small one.
HELD_BYTES: Final = 64 << 20
PIECE_BYTES: Final = 1 << 20
# Another rank of this node may be decoding: as long as ranks wait for each other to start.
LOCK_WAIT_S: Final = 1800.0
POLL_S: Final = 0.2


def jsonl_bytes(
    path: str, *, held_bytes: int = HELD_BYTES, cache: Path | None = None
) -> npt.NDArray[np.uint8]:
    """The texts of a JSON lines file, joined by newlines: in memory, or mapped if the file is large.

    Args:
        path: the file.
        held_bytes: the largest file that is held in memory.
        cache: folder of mapped files; default: see `cache_folder`.

    Raises:
        DataError: a broken line, by file and number; or no room for the mapped file.
        OSError: the file cannot be read.
    """
    if os.path.getsize(path) <= held_bytes:
        return np.frombuffer(SEPARATOR.join(jsonl_documents(path)), np.uint8)
    folder = cache or cache_folder()
    target = folder / _name(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            if not target.exists():
                _write(path, target)
                _drop_older(target)
    except OSError as error:
        if error.filename == path:
            raise
        raise DataError(
            f"{path}: its text cannot be kept in {folder}: {error.strerror or error}; set XDG_CACHE_HOME to a "
            f"folder with room, or make a token file: python -m {__package__} prepare --out FOLDER"
        ) from None
    return np.memmap(target, np.uint8, "r") if target.stat().st_size else np.zeros(0, np.uint8)


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/stoker-trainer``, else below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "stoker-trainer"


def _name(path: str) -> str:
    """``<path's hash>-<state's hash>.text``: the first half alone tells which files are the same source's."""
    known = os.stat(path)
    state = f"{known.st_size}:{known.st_mtime_ns}:{known.st_ino}"
    return f"{_short(os.path.realpath(path))}-{_short(state)}.text"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(path: str, target: Path) -> None:
    """Decodes into a temporary file and renames it: a reader finds all of it or nothing."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=target.stem, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb", buffering=PIECE_BYTES) as file:
            first = True
            for text in jsonl_documents(path):
                file.write(text if first else SEPARATOR + text)
                first = False
        os.replace(name, target)
    except BaseException:  # whatever ended it, half a file must not stay
        with suppress(OSError):
            os.unlink(name)
        raise


def _drop_older(target: Path) -> None:
    """Removes what an earlier state of the same source left; a run that has it mapped keeps its pages."""
    source = target.name.partition("-")[0]
    for other in target.parent.glob(f"{source}-*.text"):
        if other != target:
            with suppress(OSError):
                other.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process of this node at a time.

    Raises:
        DataError: another one held it for `LOCK_WAIT_S`.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    with open(path, "wb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DataError(f"{path}: held by another process for {LOCK_WAIT_S:.0f} s") from None
                time.sleep(POLL_S)
        yield


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
