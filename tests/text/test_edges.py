"""Decoding, splitting and prefixes at their bounds: the last byte that still counts, and the first that does not."""

from __future__ import annotations

import gzip
from collections.abc import Iterable

import pytest

from supervisor.text.decode import (
    MOST_NESTED,
    gunzip,
    plain_chunks,
)
from supervisor.text.lines import LineSplitter, read_amounts
from supervisor.text.prefixes import Origin, origin_of_path, split_prefix

TEXT = "step 1 loss 2.0\n"


class Torn:
    """Counts how often a log was said to be torn."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def unpacked(chunks: Iterable[bytes], **bounds: int) -> tuple[bytes, int]:
    torn = Torn()
    return b"".join(gunzip(chunks, torn, **bounds)), torn.count


def test_what_unpacks_to_too_much_is_cut_and_said() -> None:
    packed = gzip.compress(b"x" * 100)
    assert unpacked([packed], most_bytes=101) == (b"x" * 100, 0)
    assert unpacked([packed], most_bytes=100)[1] == 1
    bomb = gzip.compress(b"x" * (5 << 20))
    out, torn = unpacked([bomb], most_bytes=1 << 20)
    assert len(out) <= 2 << 20
    assert torn == 1


def nested(times: int) -> bytes:
    data = TEXT.encode()
    for _ in range(times):
        data = gzip.compress(data)
    return data


def test_gzip_within_gzip_is_read_four_times_deep() -> None:
    torn = Torn()
    assert b"".join(plain_chunks([nested(MOST_NESTED)], torn)) == TEXT.encode()
    assert torn.count == 0
    assert b"".join(plain_chunks([nested(MOST_NESTED + 1)], torn)) == b""
    assert torn.count == 1
    assert list(plain_chunks([])) == []


# -- lines ----------------------------------------------------------------------------------------------


def test_a_redrawn_line_keeps_its_newest_state_within_the_cap() -> None:
    splitter = LineSplitter(cap_bytes=10)
    (line,) = splitter.feed(b"0123456789abcdef\rnew state\r\n")
    assert (line.raw, line.was_cut) == (b"new state\r", False)
    (line,) = splitter.feed(b"\r" + b"y" * 11 + b"\n")
    assert (line.raw, line.was_cut) == (b"y" * 10, True)


# -- numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "size", "shown"),
    [
        (0, 9_999, ("0", "9999", "bytes")),
        (5_000, 10_000, ("5", "10", "KB")),
        (1, 9_999_999, ("0", "10000", "KB")),
        (1_000_000, 10_000_000, ("1", "10", "MB")),
        (5, 9_999_999_999, ("0", "10000", "MB")),
        (1_250_000_000, 10_000_000_000, ("1.2", "10.0", "GB")),
        (None, 5, None),
        (5, None, None),
    ],
)
def test_amounts_at_the_borders_of_their_units(
    read: int | None, size: int | None, shown: tuple[str, str, str] | None
) -> None:
    assert read_amounts(read, size) == shown


# -- prefixes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("2024-01-01T10:00:00Z x", True),
        ("2024-01-01 10:00:00 INFO: Traceback (most recent call last):", True),
        ("2024-01-01 10:00:00 INFO: all is well", False),
        ("stderr: KeyError: 1", True),
        ("stderr: all is well", False),
        ("[12345] KeyError: 1", True),
        ("Jan  1 10:00:00 box python[12]: KeyError: 1", True),
    ],
)
def test_what_a_collector_writes_before_a_traceback(line: str, taken: bool) -> None:
    _, rest = split_prefix(line)
    assert (rest != line) is taken


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("rank7/out.log", Origin(rank=7)),
        ("a/global_rank-12.out", Origin(rank=12, stream="stdout")),
        ("a/attempt_3/x.log", Origin()),
        ("attempts/2/nodes/4/train.err", Origin(node="node4", stream="stderr")),
        ("host-a7.log", Origin(node="host-a7")),
        ("stdout/x.log", Origin()),
    ],
)
def test_a_path_says_who_wrote(path: str, origin: Origin) -> None:
    assert origin_of_path(path) == origin


# -- the user's own line --------------------------------------------------------------------------------------
