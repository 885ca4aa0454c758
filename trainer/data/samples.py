"""Token streams, and the order in which their samples are seen.

The order is a function of the global sample number alone: neither world size nor micro-batch nor a restart
changes which samples the optimizer sees in a step.
"""

from __future__ import annotations

import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.config import Config, DataError, UsageError
from trainer.data.fileformat import another_format, no_text
from trainer.data.textfile import embedded, jsonl_bytes
from trainer.data.tokenfile import BIN_VOCABULARY, noted_text_bytes, noted_vocabulary, read_header
from trainer.data.tokenizer import BYTE_VOCABULARY

VALIDATION_SHARE: Final = 0.05
ROUNDS: Final = 4
PEEK_TOKENS: Final = 1 << 16
# Read as the other type, half of the tokens and more lie outside a small vocabulary, a tenth outside 50304.
MOST_OUTSIDE: Final = 0.05

Tokens = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Stream:
    """One long row of tokens, in memory or mapped from a file."""

    name: str
    tokens: Tokens
    vocab_size: int
    bytes_per_token: float | None = None  # of text; None where nobody counted

    def __reduce__(self) -> tuple[Any, ...]:
        """A mapped file travels to a worker process as its place, not as its contents."""
        held = self.tokens
        if isinstance(held, np.memmap) and held.filename is not None:
            return _remapped, (
                self.name,
                str(held.filename),
                str(held.dtype),
                _start_of(held),
                len(held),
                self.vocab_size,
            )
        return Stream, (self.name, np.asarray(held), self.vocab_size)

    def bits_per_byte(self, loss: float) -> float | None:
        """A loss in nats a token as bits a byte of text, which compares over tokenizers; None where nobody counted."""
        return loss / math.log(2) / self.bytes_per_token if self.bytes_per_token else None

    def fingerprint(self) -> str:
        """Tells whether a resumed run sees the same data: length and checksum of the first MiB."""
        head = np.ascontiguousarray(self.tokens[: 1 << 19]).tobytes()
        return f"{len(self.tokens)}:{zlib.crc32(head):08x}"


class SampleOrder:
    """A fixed shuffle of `count` samples, another one each epoch, without a table in memory.

    A Feistel network over the next even number of bits is a permutation of its range; walking on from
    values beyond `count` makes it one of ``range(count)`` (Black and Rogaway, 2002).
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._seed = seed
        self._half = max((count - 1).bit_length() + 1, 2) // 2
        self._mask = (1 << self._half) - 1

    def index(self, number: int) -> int:
        """Which sample the `number`-th sample of the whole training is."""
        epoch, place = divmod(number, self._count)
        while True:
            place = self._permute(place, epoch)
            if place < self._count:
                return place

    def _permute(self, value: int, epoch: int) -> int:
        left, right = value >> self._half, value & self._mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (_mix(right, self._seed, epoch, turn) & self._mask)
        return left << self._half | right


@dataclass(frozen=True, slots=True)
class Samples:
    """Fixed places in a stream, each `max_len` + 1 tokens long; a shorter sample is the start of one."""

    stream: Stream
    max_len: int
    seed: int
    shuffled: bool = True

    def __post_init__(self) -> None:
        if self.count < 1:
            raise DataError(
                f"{self.stream.name}: {len(self.stream.tokens)} tokens are fewer than one sample of "
                f"{self.max_len} + 1; use more data, or a smaller max_seq_len"
            )

    @property
    def count(self) -> int:
        """Samples of an epoch."""
        return (len(self.stream.tokens) - 1) // self.max_len

    def batch(self, numbers: range, length: int) -> Tensor:
        """Samples by global number: int64 [len(numbers), length + 1].

        Raises:
            DataError: a token lies outside the vocabulary.
        """
        order = SampleOrder(self.count, self.seed)
        rows = []
        for number in numbers:
            place = order.index(number) if self.shuffled else number % self.count
            start = place * self.max_len
            rows.append(self.stream.tokens[start : start + length + 1])
        block = np.stack(rows).astype(np.int64)
        if (highest := int(block.max())) >= self.stream.vocab_size:
            raise DataError(
                f"{self.stream.name}: token {highest} is outside the vocabulary of {self.stream.vocab_size} "
                f"(near token {start}): set vocab_size, or data_dtype if the file's type is another"
            )
        return torch.from_numpy(block)


def open_data(config: Config) -> tuple[Stream, Stream]:
    """The training and the validation stream.

    Raises:
        UsageError: a file is missing, empty, of another type or too short.
    """
    try:
        train = open_stream(config, config.train_data_path)
        if config.valid_data_path:
            return train, open_stream(config, config.valid_data_path)
        cut = int(len(train.tokens) * (1 - VALIDATION_SHARE))
        tail = Stream(f"{train.name} (tail)", train.tokens[cut:], train.vocab_size, train.bytes_per_token)
        Samples(tail, config.max_seq_len, 0)
        return Stream(train.name, train.tokens[:cut], train.vocab_size, train.bytes_per_token), tail
    except DataError as error:
        raise UsageError(str(error)) from None


def open_stream(config: Config, path: str) -> Stream:
    """Opens a token file, a text file, or (no path) the embedded corpus.

    Raises:
        DataError: it cannot be read, or is no such file.
    """
    if not path:
        name = "the standard library's source"
        return Stream(name, embedded(config.corpus_mib << 20), config.vocab_size or BYTE_VOCABULARY, 1.0)
    try:
        if os.path.getsize(path) == 0:
            raise DataError(f"{path}: the file is empty")
        if (other := another_format(path)) is not None:
            raise DataError(f"{path}: {other}")
        if Path(path).suffix == ".bin":
            return _bin(config, path)
        if Path(path).suffix == ".jsonl":
            return Stream(path, jsonl_bytes(path), config.vocab_size or BYTE_VOCABULARY, 1.0)
        if (why := no_text(path, whole=False)) is not None:
            raise DataError(f"{path}: {why}")
        return Stream(path, np.memmap(path, np.uint8, "r"), config.vocab_size or BYTE_VOCABULARY, 1.0)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _bin(config: Config, path: str) -> Stream:
    found = read_header(path, config.data_dtype)
    if isinstance(found, str):
        raise DataError(f"{path}: {found}")
    tokens = np.memmap(path, np.dtype(found.dtype).newbyteorder("<"), "r", offset=found.offset)
    text_bytes = noted_text_bytes(path)
    stream = Stream(
        path,
        tokens,
        config.vocab_size or noted_vocabulary(path) or BIN_VOCABULARY,
        text_bytes / len(tokens) if text_bytes and len(tokens) else None,
    )
    _refuse_another_type(stream, found.dtype)
    return stream


def _refuse_another_type(stream: Stream, dtype: str) -> None:
    """Tells from the first tokens that a file is of another type than it is read as.

    One stray token is no sign of it: the step that meets it says so, and may be skipped.
    """
    first = stream.tokens[:PEEK_TOKENS]
    outside = float(np.mean(first >= stream.vocab_size))
    other = "uint32" if dtype == "uint16" else "uint16"
    hint = f"data_dtype {other} may fit, or another vocab_size"
    if outside > MOST_OUTSIDE:
        raise DataError(
            f"{stream.name}: read as {dtype}, {outside:.0%} of its first tokens are outside the vocabulary of "
            f"{stream.vocab_size}: {hint}"
        )
    if dtype == "uint16" and len(first) > 1 and first.any() and not first[1::2].any():
        raise DataError(f"{stream.name}: read as uint16, every second token is 0: {hint}")


def _remapped(name: str, path: str, dtype: str, start: int, count: int, vocab_size: int) -> Stream:
    return Stream(name, np.memmap(path, dtype, "r", offset=start, shape=(count,)), vocab_size)


def _start_of(part: np.memmap[Any, Any]) -> int:
    """Where a part of a mapped file starts, in bytes: numpy keeps the offset of the whole only."""
    whole = part
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    shift = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return int(whole.offset + shift)


def _mix(value: int, seed: int, epoch: int, turn: int) -> int:
    """A 64-bit hash of its arguments (the finaliser of splitmix64, Steele et al. 2014)."""
    x = (value + 0x9E3779B97F4A7C15 * (turn + 1) + (seed << 20) + 0xD1B54A32D192ED03 * epoch) & (2**64 - 1)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return x ^ (x >> 31)
