"""Decodes JSON files, and appends to and reads JSON Lines files in whole lines only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from supervisor.run.paths import make_private, private
from supervisor.run.regular import read_regular

T = TypeVar("T")
# Exceptions from decoding foreign bytes: ValueError for broken UTF-8 (msgspec's own errors only in some
# versions, not in 0.19), RecursionError for endless nesting, OverflowError for a huge integer.
NOT_DECODED: Final = (ValueError, msgspec.DecodeError, RecursionError, OverflowError)
_PACKER: Final = msgspec.msgpack.Encoder()


def bounded(value: T) -> T:
    """Return the decoded value if all its integers fit in 64 bits. A 400-digit step cannot even be converted to a float.

    Raises:
        OverflowError: an integer does not fit.
    """
    _PACKER.encode(value)  # MessagePack has no larger integers; takes 0.2 µs per event
    return value


def decoded_file(path: str | os.PathLike[str], kind: type[T], most_bytes: int = -1) -> T | None:
    """Decode a regular JSON file, reading at most `most_bytes`. Return None if the file is missing or invalid."""
    try:
        return bounded(msgspec.json.decode(read_regular(path, most_bytes), type=kind))
    except (OSError, *NOT_DECODED):
        return None


def append_line(path: Path, *records: msgspec.Struct, follows: bool = False) -> OSError | None:
    """Append one line per record to a file owned by the user, creating its folder if needed. Return the error if that fails.

    Whole lines go out in a single write, even after a torn line, so several processes may append at once. A link (unless
    `follows`), a pipe or another user's file is left alone, since no run depends on these files.
    """
    try:
        # A link to itself stays a link, and is refused.
        target = Path(os.path.realpath(path)) if follows else path
        make_private(target.parent)
        fd = private(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)
        with open(fd, "wb", buffering=0) as file:
            if os.fstat(fd).st_uid in {os.geteuid(), target.parent.stat().st_uid}:
                file.write(b"".join(b"\n" + msgspec.json.encode(record) + b"\n" for record in records))
    except OSError as error:  # an error while writing has no file name yet
        return OSError(error.errno, error.strerror, str(path))
    return None


def decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> Iterator[T]:
    """Yield the records in `data`, skipping damaged or foreign lines."""
    for line in data.split(b"\n"):
        if line:
            try:
                yield bounded(decoder.decode(line))
            except NOT_DECODED:
                continue
