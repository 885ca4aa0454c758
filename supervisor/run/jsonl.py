"""Files of JSON lines: lines are appended whole, and read as far as they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from supervisor.run.paths import make_private, private
from supervisor.run.regular import read_regular

T = TypeVar("T")
# What decoding foreign bytes raises: broken UTF-8 is a ValueError, msgspec's own errors only in some versions (0.19: not); nesting
# without end recurses; an integer is too large.
NOT_DECODED: Final = (ValueError, msgspec.DecodeError, RecursionError, OverflowError)
_PACKER: Final = msgspec.msgpack.Encoder()


def bounded(value: T) -> T:
    """What was decoded, if each integer in it fits into 64 bits: a step of 400 digits is no step, and no float either.

    Raises:
        OverflowError: one does not.
    """
    _PACKER.encode(value)  # MessagePack has no larger ones; 0.2 µs an event
    return value


def decoded_file(path: str | os.PathLike[str], kind: type[T], most_bytes: int = -1) -> T | None:
    """What a regular file of JSON holds, of which at most so much is read; None where it is not there or makes no sense."""
    try:
        return bounded(msgspec.json.decode(read_regular(path, most_bytes), type=kind))
    except (OSError, *NOT_DECODED):
        return None


def append_line(path: Path, *records: msgspec.Struct, follows: bool = False) -> OSError | None:
    """Add a line for each record to a file of the user's, whose folder is made if need be; the error where they cannot be written.

    One write of whole lines, also behind a torn one: several stokers may do so at once. A link (unless it `follows` the user's own),
    a pipe or a stranger's file is left alone: no run depends on these files.
    """
    try:
        # A link to itself stays one, and is refused.
        target = Path(os.path.realpath(path)) if follows else path
        make_private(target.parent)
        fd = private(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK)
        with open(fd, "wb", buffering=0) as file:
            if os.fstat(fd).st_uid in {os.geteuid(), target.parent.stat().st_uid}:
                file.write(b"".join(b"\n" + msgspec.json.encode(record) + b"\n" for record in records))
    except OSError as error:  # what is refused as it is written out has no name yet
        return OSError(error.errno, error.strerror, str(path))
    return None


def decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> Iterator[T]:
    """The records in `data`; a line that a full disk tore, or that another program wrote, is passed over."""
    for line in data.split(b"\n"):
        if line:
            try:
                yield bounded(decoder.decode(line))
            except NOT_DECODED:
                continue
