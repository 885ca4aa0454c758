"""What a data file really is, whatever its name says: other formats by their first bytes, and bytes that are no text.

Bytes are tokens here, so that any file could be trained on: a compressed one, silently, to nonsense. Standard library alone.
"""

from __future__ import annotations

import codecs
import os
from typing import BinaryIO, Final

# First bytes to what begins so, and what to do about it: the registries of file(1) and the formats' own pages.
MAGICS: Final[tuple[tuple[bytes, str, str], ...]] = (
    (b"PAR1", "a parquet file", f"python -m {__package__} prepare makes tokens of one called .parquet"),
    (
        b"\x1f\x8b",
        "compressed by gzip",
        f"gunzip it; or python -m {__package__} prepare, of .jsonl.gz and .txt.gz",
    ),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd -d it first"),
    (b"\xfd7zXZ\x00", "compressed by xz", "unxz it first"),
    (b"BZh", "compressed by bzip2", "bunzip2 it first"),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4 -d it first"),
    (b"PK\x03\x04", "a zip archive, or a file of torch.save", "unpack it, and name the files in it"),
    (b"\x93NUMPY", "a numpy array", "array.astype('uint16').tofile('train.bin') writes tokens"),
    (b"ARROW1", "an Arrow file", "write its text column as .jsonl or .txt first"),
    (b"Obj\x01", "an Avro file", "write its text as .jsonl or .txt first"),
    (b"\x89HDF", "an HDF5 file", "write its text or tokens to a file of their own"),
    (b"SQLite format 3\x00", "an SQLite database", "write its text as .jsonl or .txt first"),
    (b"%PDF-", "a PDF", "pdftotext makes text of it"),
    (b"\x89PNG", "an image", "name a file of text or tokens"),
    (b"\xff\xd8\xff", "an image", "name a file of text or tokens"),
    (b"\x7fELF", "a program", "name a file of text or tokens"),
    (b"\x80\x02", "a pickle", "it is not read: write its text or tokens to a file of their own"),
    (b"\x80\x03", "a pickle", "it is not read: write its text or tokens to a file of their own"),
    (b"\x80\x04", "a pickle", "it is not read: write its text or tokens to a file of their own"),
    (b"\x80\x05", "a pickle", "it is not read: write its text or tokens to a file of their own"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8 makes text of it"),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8 makes text of it"),
)
# Tokens of a .bin may begin like a short magic by chance (two bytes are one token): there only long ones count.
SURE_BYTES: Final = 4
PIECE_BYTES: Final = 1 << 20


def another_format(path: str) -> str | None:
    """What else a file is than its name says, and what to do about it; None where nothing speaks against it.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(16)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - 4, 0))
        tail = file.read(4)
    is_tokens = path.endswith(".bin")
    for magic, what, fix in MAGICS:
        if head.startswith(magic) and (not is_tokens or len(magic) >= SURE_BYTES):
            if magic == b"PAR1" and tail != b"PAR1":  # such a file ends as it begins
                continue
            return f"it is {what}: {fix}"
    if path.endswith(".json"):
        if (why := no_text(path, whole=False)) is not None:
            return why
        return 'JSON in one piece is not read: write an object {"text": "…"} a line, as .jsonl'
    return None


def read_as_columns(path: str) -> bool:
    """Whether a file called .parquet or .arrow is one: bytes of another kind are named by `another_format`.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(4)
    return head in {b"PAR1", b"\xff\xff\xff\xff"}  # the second: Arrow's IPC stream, as datasets write it


def no_text(path: str, *, whole: bool) -> str | None:
    """Why a file is no UTF-8 text; None where it is.

    Args:
        path: the file.
        whole: read all of it; else a MiB at its start, its middle and its end, which costs a training nothing.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if whole or size <= 3 * PIECE_BYTES:
            return _read_through(file, 0, size)
        for start in (0, size // 2, size - PIECE_BYTES):
            file.seek(start)
            # A character may be cut where a piece begins or ends.
            begun = file.read(3) if start else b""
            skipped = next((at for at, byte in enumerate(begun) if byte & 0xC0 != 0x80), len(begun))
            if why := _read_through(
                file, start + skipped, start + PIECE_BYTES, is_end=start + PIECE_BYTES >= size
            ):
                return why
    return None


def _read_through(file: BinaryIO, start: int, end: int, *, is_end: bool = True) -> str | None:
    """What is no text between two places of a file. `is_end`: the last character has to be whole."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    file.seek(start)
    while start < end and (piece := file.read(min(PIECE_BYTES, end - start))):
        if (at := piece.find(b"\0")) >= 0:
            return f"byte {start + at} is NUL: this is a binary file, not text (tokens belong in a .bin)"
        held = len(decoder.getstate()[0])
        try:
            decoder.decode(piece, final=is_end and start + len(piece) >= end)
        except UnicodeDecodeError as error:
            fix = "iconv -f LATIN1 -t UTF-8 converts Western European text; anything else is a binary file"
            return f"byte {start - held + error.start} is not UTF-8: {fix}"
        start += len(piece)
    return None
