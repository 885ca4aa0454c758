"""Text into tokens: JSON lines and plain files, as bytes, and ``python -m trainer.data prepare``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainer.corpus import embedded
from trainer.errors import DataError

BYTE_VOCABULARY: Final = 256
# llm.c's header: 256 int32, of which the first three are magic, version and number of tokens.
MAGIC_UINT16: Final = 20240520
HEADER_INTS: Final = 256
SEPARATOR: Final = b"\n"


def jsonl_documents(path: str, field: str = "text") -> Iterator[bytes]:
    """The texts of a JSON lines file.

    Raises:
        DataError: a line is no JSON object with that text; file and line are named.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record: Any = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}:{number}: no JSON: {' '.join(str(error).split())[:100]}") from None
            text = record.get(field) if isinstance(record, dict) else None
            if not isinstance(text, str):
                raise DataError(f'{path}:{number}: wants an object with "{field}": "…"')
            yield text.encode("utf-8", errors="replace")


def documents(path: str, field: str = "text") -> Iterator[bytes]:
    """The documents of a file (by line for .jsonl) or of all files of a folder, in a fixed order."""
    if os.path.isdir(path):
        for folder, names, files in os.walk(path):
            names.sort()
            for name in sorted(files):
                yield from documents(os.path.join(folder, name), field)
    elif path.endswith(".jsonl"):
        yield from jsonl_documents(path, field)
    else:
        yield Path(path).read_bytes()


def prepare(sources: Sequence[str], out: Path, *, field: str = "text", val_share: float = 0.05) -> str:
    """Writes train.bin and val.bin: bytes as uint16 tokens with llm.c's header, and a note of the vocabulary.

    Every n-th document goes to validation; of fewer than n documents, the end of the last one.

    Returns:
        One line about what was written.

    Raises:
        DataError: nothing to read, or a broken line.
        OSError: a file cannot be read or written.
    """
    every = max(round(1 / val_share), 2)
    train: list[bytes] = []
    val: list[bytes] = []
    for number, text in enumerate(text for source in sources for text in documents(source, field)):
        (val if number % every == every - 1 else train).append(text + SEPARATOR)
    if not val and train:
        last = train.pop()
        cut = int(len(last) * (1 - val_share))
        train.append(last[:cut])
        val.append(last[cut:])
    if not train or not b"".join(train).strip():
        raise DataError(f"{', '.join(sources)}: no text in there")
    out.mkdir(parents=True, exist_ok=True)
    sizes = [_write(out / name, b"".join(parts)) for name, parts in (("train.bin", train), ("val.bin", val))]
    return (
        f"{out}: train.bin {sizes[0]} tokens, val.bin {sizes[1]} tokens, vocabulary {BYTE_VOCABULARY} (bytes)"
    )


def main(argv: Sequence[str]) -> int:
    """``python -m trainer.data prepare``. Returns: 0, or 2 for what cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m trainer.data", description="Turn text into token files.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("prepare", help="write train.bin and val.bin")
    verb.add_argument(
        "sources", nargs="*", help="text or .jsonl files, or folders; none: Python's own source"
    )
    verb.add_argument("--out", type=Path, required=True, help="folder for train.bin and val.bin")
    verb.add_argument("--field", default="text", help="the text's key in JSON lines")
    verb.add_argument("--val_share", "--val-share", type=float, default=0.05, help="share for validation")
    chosen = parser.parse_args(argv)
    if not 0 < chosen.val_share < 1:
        parser.error("--val_share is a share between 0 and 1")
    try:
        if chosen.sources:
            print(prepare(chosen.sources, chosen.out, field=chosen.field, val_share=chosen.val_share))
        else:
            chosen.out.mkdir(parents=True, exist_ok=True)
            data = embedded(64 << 20).tobytes()
            cut = int(len(data) * (1 - chosen.val_share))
            sizes = _write(chosen.out / "train.bin", data[:cut]), _write(chosen.out / "val.bin", data[cut:])
            print(f"{chosen.out}: train.bin {sizes[0]} tokens, val.bin {sizes[1]} tokens")
    except (DataError, OSError) as error:
        sys.stderr.write(f"trainer.data: {error}\n")
        return 2
    return 0


def _write(path: Path, data: bytes) -> int:
    """One token file beside a note of its vocabulary; whole or not at all. Returns: its tokens."""
    header = np.zeros(HEADER_INTS, np.int32)
    header[:3] = MAGIC_UINT16, 1, len(data)
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        file.write(header.tobytes())
        file.write(np.frombuffer(data, np.uint8).astype(np.uint16).tobytes())
    os.replace(temporary, path)
    note = {"vocab_size": BYTE_VOCABULARY, "encoding": "bytes"}
    path.with_name(path.name + ".json").write_text(json.dumps(note) + "\n", encoding="utf-8")
    return len(data)
