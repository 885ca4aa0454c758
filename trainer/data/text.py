"""Text files into token files: JSON lines, columns and plain text."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self, cast

from trainer.config import DataError
from trainer.data.fileformat import another_format, no_text, read_as_columns
from trainer.data.tokenfile import HEADER_BYTES, WIDTHS, header
from trainer.data.tokenizer import TOKENIZER, Tokenizer, packed

PIECE_BYTES: Final = 1 << 20
ROWS_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """Why a line is no record with a text."""

    why: str


def text_of(line: bytes, text_key: str) -> bytes | BrokenLine:
    """The text of one line of JSON lines, or why it has none."""
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BrokenLine(f"no JSON: {' '.join(str(error).split())[:100]}")
    text = record.get(text_key) if isinstance(record, dict) else None
    if not isinstance(text, str):
        return BrokenLine(f'wants an object with "{text_key}": "…"')
    return text.encode("utf-8", errors="replace")


def jsonl_documents(path: str, text_key: str = "text") -> Iterator[bytes]:
    """The texts of a JSON lines file, one at a time; one whose name ends in ``.gz`` is decompressed on the way.

    Raises:
        DataError: a line is no JSON object with that text; file and line are named.
        OSError: the file cannot be read.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            text = text_of(line, text_key)
            if isinstance(text, BrokenLine):
                raise DataError(f"{path}:{number}: {text.why}")
            yield text


def column_documents(path: str, text_key: str = "text") -> Iterator[bytes]:
    """The texts of a column of a parquet or an Arrow file (datasets.Dataset.save_to_disk), one batch of rows in memory at a time.

    Raises:
        DataError: pyarrow is not installed, the file is broken, or has no such column of text.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(f"{path}: reading it needs pyarrow: pip install 'stoker[parquet]'") from None
    try:
        if path.endswith(".arrow"):
            reader = pa.ipc.open_stream(pa.memory_map(path))
            schema, batches = reader.schema, iter(reader)
        else:
            file = pq.ParquetFile(path)
            schema, batches = file.schema_arrow, file.iter_batches(ROWS_AT_ONCE)
        texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        if text_key not in texts:
            known = f"columns of text are: {', '.join(texts)}" if texts else "it has no column of text"
            raise DataError(f"{path}: no column of text is called {text_key} (--field): {known}")
        for batch in batches:
            for text in batch.column(text_key).to_pylist():
                if text:
                    yield text.encode("utf-8", errors="replace")
    except (pa.ArrowException, OSError) as error:  # a footer that cannot be read is an OSError to it
        raise DataError(f"{path}: {' '.join(str(error).split())[:200]}") from None


def documents(path: str, text_key: str = "text") -> Iterator[Iterable[bytes]]:
    """The documents of a file (by line or row where it has some) or of all files of a folder, in a fixed order, each in pieces."""
    if os.path.isdir(path):
        is_dataset = os.path.isfile(os.path.join(path, "dataset_info.json"))
        for folder, names, files in os.walk(path):
            names.sort()
            for name in sorted(files):
                if not is_dataset or name.endswith(".arrow"):
                    yield from documents(os.path.join(folder, name), text_key)
    elif path.endswith((".parquet", ".arrow")) and read_as_columns(path):
        for text in column_documents(path, text_key):
            yield (text,)
    elif path.endswith(".jsonl.gz"):
        for text in jsonl_documents(path, text_key):
            yield (text,)
    elif path.endswith(".txt.gz"):
        yield _checked(path)
    elif (other := another_format(path)) is not None:
        raise DataError(f"{path}: {other}")
    elif path.endswith(".jsonl"):
        for text in jsonl_documents(path, text_key):
            yield (text,)
    elif (why := no_text(path, whole=True)) is not None:
        raise DataError(f"{path}: {why}")
    else:
        yield _pieces(path)


def prepare(
    texts: Iterable[Iterable[bytes]],
    out: Path,
    tokenizer: Tokenizer,
    *,
    sources: Sequence[str],
    val_share: float = 0.05,
) -> str:
    """Writes train.bin and val.bin with llm.c's header, a note beside each, and the tokenizer if it is one to be saved.

    Every n-th document goes to validation; of fewer than n documents, the end of the training part. No more
    than a document's piece is held in memory.

    Args:
        texts: documents, each in pieces.
        out: the folder.
        tokenizer: makes tokens of them.
        sources: where the texts come from, for messages.
        val_share: above 0, below 1.

    Returns:
        One line about what was written.

    Raises:
        DataError: nothing to read, or a broken line.
        OSError: a file cannot be read or written.
    """
    every = max(round(1 / val_share), 2)
    blank = True
    out.mkdir(parents=True, exist_ok=True)

    def looked_at(pieces: Iterable[bytes]) -> Iterator[bytes]:
        nonlocal blank
        for piece in pieces:
            blank = blank and not piece.strip()
            yield piece

    with _TokenWriter(out / "train.bin", tokenizer) as train, _TokenWriter(out / "val.bin", tokenizer) as val:
        for number, pieces in enumerate(texts):
            writer = val if number % every == every - 1 else train
            for tokens, text_bytes in tokenizer.document(looked_at(pieces)):
                writer.write(tokens, text_bytes)
        if blank:
            raise DataError(f"{', '.join(sources)}: no text in there")
        if not val.count:
            train.move_end(val, train.count - int(train.count * (1 - val_share)))
        if tokenizer.saved:
            (out / TOKENIZER).write_bytes(tokenizer.saved)
        train.commit()
        val.commit()
    shown = "bytes" if not tokenizer.saved else f"{train.text_bytes / max(train.count, 1):.2f} bytes a token"
    return (
        f"{out}: train.bin {train.count} tokens, val.bin {val.count} tokens, "
        f"vocabulary {tokenizer.vocab_size} ({shown})"
    )


def all_documents(sources: Sequence[str], text_key: str = "text") -> Iterator[Iterable[bytes]]:
    """The documents of files and folders, one source after another; raises as `documents` does."""
    for source in sources:
        yield from documents(source, text_key)


class _TokenWriter:
    """One token file beside a note of its vocabulary, written in pieces; whole or not at all."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self._path = path
        self._tokenizer = tokenizer
        self._dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._file: BinaryIO = open(self._temporary, "w+b", buffering=PIECE_BYTES)  # noqa: SIM115 - closed by __exit__
        self._file.write(bytes(HEADER_BYTES))
        self.count = 0
        self.text_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _e: object, _trace: TracebackType | None) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def write(self, tokens: Sequence[int], text_bytes: int) -> None:
        """Tokens, and how many bytes of text they stand for."""
        self._file.write(packed(tokens, self._dtype))
        self.count += len(tokens)
        self.text_bytes += text_bytes

    def move_end(self, other: _TokenWriter, count: int) -> None:
        """Moves the last `count` tokens to the end of `other`."""
        start = HEADER_BYTES + WIDTHS[self._dtype] * (self.count - count)
        self._file.seek(start)
        while piece := self._file.read(PIECE_BYTES):
            tokens = array("H" if self._dtype == "uint16" else "I", piece)
            if sys.byteorder == "big":
                tokens.byteswap()
            stood_for = self._tokenizer.length(tokens)
            other.write(tokens, stood_for)
            self.text_bytes -= stood_for
        self._file.seek(start)
        self._file.truncate()
        self.count -= count

    def commit(self) -> None:
        """Counts the tokens in the header and gives the file its name."""
        head = header(self.count, self._dtype)
        if not head:
            raise DataError(
                f"{self._path}: {self.count} tokens are more than a header counts: split the sources"
            )
        self._file.seek(0)
        self._file.write(head)
        self._file.close()
        note = {
            "vocab_size": self._tokenizer.vocab_size,
            "encoding": self._tokenizer.encoding,
            "text_bytes": self.text_bytes,
        }
        self._path.with_name(self._path.name + ".json").write_text(json.dumps(note) + "\n", encoding="utf-8")
        os.replace(self._temporary, self._path)


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """A file to read, decompressed if its name ends in ``.gz``.

    Raises:
        DataError: while it is read, the compressed file turns out to be broken.
        OSError: it cannot be opened.
    """
    try:
        with cast("BinaryIO", gzip.open(path, "rb")) if path.endswith(".gz") else open(path, "rb") as file:
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip file is broken or truncated: {error}") from None


def _checked(path: str) -> Iterator[bytes]:
    """The pieces of a compressed text, which is looked at as it comes: it is no file that could be looked through before."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with _opened(path) as file:
            while piece := file.read(PIECE_BYTES):
                if b"\0" in piece:
                    raise DataError(f"{path}: it contains a NUL byte: it is not text")
                decoder.decode(piece)
                yield piece
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise DataError(f"{path}: its contents are not UTF-8 text") from None


def _pieces(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
