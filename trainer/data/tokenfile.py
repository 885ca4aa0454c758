"""The .bin format: tokens in a row, little-endian uint16 or uint32, with or without llm.c's header.

The header is 256 int32, of which the first three are a magic number, a version and the number of tokens.
Standard library alone.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HEADER_BYTES: Final = 1024
HEADER_MAGIC: Final = {20240520: "uint16", 20240801: "uint32"}
BIN_VOCABULARY: Final = 50_304  # GPT-2's 50257, rounded up to a multiple of 64
WIDTHS: Final = {"uint16": 2, "uint32": 4}
# The count in the header is an int32.
MOST_COUNTED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Where the tokens of a file lie: `count` of `dtype` from byte `offset` on."""

    dtype: str
    offset: int
    count: int


def read_header(path: str, dtype: str) -> TokenFile | str:
    """The layout of a token file, or what is wrong with it.

    Args:
        path: the file, not empty.
        dtype: what the settings say: auto, uint16 or uint32.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
        size = os.fstat(file.fileno()).st_size
    magic, _version, counted = struct.unpack_from("<3i", head) if len(head) == HEADER_BYTES else (0, 0, 0)
    kind = HEADER_MAGIC.get(magic)
    offset = HEADER_BYTES if kind else 0
    if kind and dtype not in {"auto", kind}:
        return f"its header says {kind}, data_dtype says {dtype}"
    chosen = kind or ("uint32" if dtype == "uint32" else "uint16")
    if (size - offset) % WIDTHS[chosen]:
        return f"{size} bytes are no whole number of {chosen} tokens: cut short, or another data_dtype"
    count = (size - offset) // WIDTHS[chosen]
    if kind and counted != count:
        return f"its header says {counted} tokens, it holds {count}: cut short?"
    return TokenFile(chosen, offset, count)


def header(count: int, dtype: str = "uint16") -> bytes:
    """llm.c's header for `count` tokens of `dtype`; empty for more than it can count."""
    if count > MOST_COUNTED:
        return b""
    magic = next(magic for magic, kind in HEADER_MAGIC.items() if kind == dtype)
    return struct.pack("<3i", magic, 1, count).ljust(HEADER_BYTES, b"\0")


def noted_vocabulary(path: str) -> int | None:
    """The vocabulary that `prepare` noted beside a token file, if it did."""
    return _noted(path, "vocab_size")


def noted_text_bytes(path: str) -> int | None:
    """How many bytes of text the tokens of a file stand for, if `prepare` noted it."""
    return _noted(path, "text_bytes")


def _noted(path: str, name: str) -> int | None:
    try:
        note: Any = json.loads(Path(path + ".json").read_text(encoding="utf-8"))
        value = note[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, int) and value > 0 else None
