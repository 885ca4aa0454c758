"""``python -m trainer.data check``: says of data files what a training would trip over, all at once.

Standard library alone (numpy is used where it is): it runs before anything is set up.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trainer.data.fileformat import another_format, no_text
from trainer.data.text import BrokenLine, text_of
from trainer.data.tokenfile import BIN_VOCABULARY, TokenFile, noted_vocabulary, read_header

FAULTS_SHOWN: Final = 10
PIECE_BYTES: Final = 4 << 20


@dataclass(slots=True)
class Result:
    """What was found out about one file: a line about it, and its faults."""

    path: str
    summary: str = ""
    faults: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, fault: str) -> None:
        """One more fault; only the first ones are kept, all are counted."""
        self.count += 1
        if len(self.faults) < FAULTS_SHOWN:
            self.faults.append(fault)


def check_files(
    paths: list[str], *, vocab_size: int = 0, dtype: str = "auto", length: int = 0, text_key: str = "text"
) -> Iterator[Result]:
    """Checks files, and the .bin, .jsonl and .txt files of folders.

    Args:
        paths: files and folders.
        vocab_size: ids must lie below it; 0: what `prepare` noted beside a token file, else 50304.
        dtype: type of a .bin without header: auto, uint16 or uint32.
        length: tokens of a training sample; 0: unknown.
        text_key: the text's key in JSON lines.
    """
    for path in paths:
        for name in _files(path):
            result = Result(name)
            try:
                if os.path.isdir(name):
                    result.add(f"{name}: no .bin, .jsonl or .txt file in this folder")
                elif os.path.getsize(name) == 0:
                    result.add(f"{name}: the file is empty")
                elif (other := another_format(name)) is not None:
                    result.add(f"{name}: {other}")
                elif name.endswith(".bin"):
                    _check_bin(result, vocab_size, dtype, length)
                elif name.endswith(".jsonl"):
                    _check_jsonl(result, text_key, length)
                elif (why := no_text(name, whole=True)) is not None:
                    result.add(f"{name}: {why}")
                else:
                    _check_length(result, os.path.getsize(name), length)
                    result.summary = f"{os.path.getsize(name)} bytes of text"
            except OSError as error:
                result.add(f"{name}: {error.strerror or error}")
            yield result


def run(
    paths: list[str], *, vocab_size: int = 0, dtype: str = "auto", length: int = 0, text_key: str = "text"
) -> int:
    """Prints what was found, faults on stderr. Returns: 0, or 2 if there is a fault."""
    faulty = False
    for result in check_files(paths, vocab_size=vocab_size, dtype=dtype, length=length, text_key=text_key):
        for fault in result.faults:
            print(_printable(fault), file=sys.stderr)
        if (hidden := result.count - len(result.faults)) > 0:
            print(_printable(f"{result.path}: and {hidden} more"), file=sys.stderr)
        if result.count:
            faulty = True
        else:
            print(_printable(f"{result.path}: {result.summary}"))
        sys.stdout.flush()
    return 2 if faulty else 0


def _printable(text: str) -> str:
    r"""One line that cannot act on a terminal, whatever a file is called: ``\x1b``, ``\n``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _files(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        yield path
        return
    names = [name for name in sorted(os.listdir(path)) if name.endswith((".bin", ".jsonl", ".txt"))]
    yield from (os.path.join(path, name) for name in names) if names else (path,)


def _check_bin(result: Result, vocab_size: int, dtype: str, length: int) -> None:
    found = read_header(result.path, dtype)
    if isinstance(found, str):
        result.add(f"{result.path}: {found}")
        return
    _check_length(result, found.count, length)
    limit = vocab_size or noted_vocabulary(result.path) or BIN_VOCABULARY
    place, highest = _highest(result.path, found)
    if highest >= limit:
        result.add(
            f"{result.path}: token {highest} (number {place}) is outside the vocabulary of {limit}: "
            "another vocab_size, or another type than " + found.dtype
        )
    header = "llm.c's header" if found.offset else "no header"
    result.summary = f"{found.count} tokens of {found.dtype}, {header}, ids up to {highest}"


def _highest(path: str, found: TokenFile) -> tuple[int, int]:
    """Place and value of the highest id."""
    best, place, done = -1, 0, 0
    with open(path, "rb") as file:
        file.seek(found.offset)
        while piece := file.read(PIECE_BYTES):
            ids = array("H" if found.dtype == "uint16" else "I", piece)
            if (highest := _maximum(ids)) > best:
                best, place = highest, done + ids.index(highest)
            done += len(ids)
    return place, best


def _maximum(ids: array[int]) -> int:
    try:
        import numpy as np
    except ImportError:
        return max(ids)  # some 20 ns each: 10 s a GB
    return int(np.frombuffer(ids, np.uint16 if ids.typecode == "H" else np.uint32).max())


def _check_jsonl(result: Result, text_key: str, length: int) -> None:
    texts = size = 0
    with open(result.path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            text = text_of(line, text_key)
            if isinstance(text, BrokenLine):
                result.add(f"{result.path}:{number}: {text.why}")
                continue
            texts += 1
            size += len(text) + 1
    if not result.count:
        _check_length(result, size, length)
    result.summary = f"{texts} texts, {size} bytes"


def _check_length(result: Result, tokens: int, length: int) -> None:
    if tokens < length + 1 and (length or not tokens):
        result.add(
            f"{result.path}: {tokens} tokens are fewer than one sample of {length} + 1; "
            "use more data, or a smaller max_seq_len"
        )
