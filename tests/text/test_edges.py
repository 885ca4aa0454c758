"""Decoding, splitting and prefixes at their bounds: the last byte that still counts, and the first that does not."""

from __future__ import annotations

import gzip
from collections.abc import Iterable

import pytest

from supervisor.text.decode import (
    CAP_MARK,
    HEAD_BYTES,
    MOST_NESTED,
    clean,
    gunzip,
    plain_chunks,
)
from supervisor.text.lines import LineSplitter, lines_from, read_amounts
from supervisor.text.patterns import MOST_DIGITS, whole
from supervisor.text.prefixes import NUMBERED, Origin, learn_hosts, origin_of_path, split_prefix
from supervisor.text.tracebacks import LOOKED_AT, CodeLine, own_line

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


def test_a_torn_end_is_said_once_and_a_whole_one_is_not() -> None:
    packed = gzip.compress(b"a line\n")
    assert unpacked([packed]) == (b"a line\n", 0)
    assert unpacked([packed, b"\0" * 512]) == (b"a line\n", 0), "what pads a block is no member"
    assert unpacked([packed[:-1]]) == (b"a line\n", 1)
    assert unpacked([packed, packed[:9]]) == (b"a line\n", 1)
    assert unpacked([packed + b"junk"]) == (b"a line\n", 1)
    assert unpacked([packed + packed]) == (b"a line\na line\n", 0)
    assert unpacked([]) == (b"", 0)


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


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be"])
def test_a_utf16_log_cut_within_a_character_keeps_a_mark_of_it(name: str) -> None:
    data = ("\ufeff" + TEXT).encode(name)
    assert b"".join(plain_chunks([data])) == TEXT.encode()
    assert b"".join(plain_chunks([data + b"x"])).decode() == TEXT + "\ufffd"
    small = [data[at : at + 3] for at in range(0, len(data), 3)]
    assert b"".join(plain_chunks(small)) == TEXT.encode()


def test_a_line_of_just_the_cap_is_whole() -> None:
    assert clean(b"x" * 10, cap_bytes=10) == "x" * 10
    assert clean(b"x" * 11, cap_bytes=10) == "x" * 10 + CAP_MARK
    assert HEAD_BYTES >= 512


# -- lines ----------------------------------------------------------------------------------------------


def test_a_line_of_just_the_cap_is_not_cut_however_it_comes() -> None:
    for pieces in ([b"x" * 10 + b"\n"], [b"x" * 5, b"x" * 5, b"\n"]):
        whole_, cut = LineSplitter(cap_bytes=10), LineSplitter(cap_bytes=9)
        (line,) = [line for piece in pieces for line in whole_.feed(piece)]
        assert (line.raw, line.was_cut) == (b"x" * 10, False)
        (line,) = [line for piece in pieces for line in cut.feed(piece)]
        assert (line.raw, line.was_cut) == (b"x" * 9, True)
        assert line.text == "x" * 9 + CAP_MARK


def test_a_mark_of_a_cut_stands_there_once() -> None:
    splitter = LineSplitter(cap_bytes=40_000)
    (line,) = splitter.feed(b"x" * 50_000 + b"\n")
    assert line.was_cut
    assert line.text.count(CAP_MARK) == 1


def test_a_redrawn_line_keeps_its_newest_state_within_the_cap() -> None:
    splitter = LineSplitter(cap_bytes=10)
    (line,) = splitter.feed(b"0123456789abcdef\rnew state\r\n")
    assert (line.raw, line.was_cut) == (b"new state\r", False)
    (line,) = splitter.feed(b"\r" + b"y" * 11 + b"\n")
    assert (line.raw, line.was_cut) == (b"y" * 10, True)


def test_an_open_line_and_its_place() -> None:
    splitter = LineSplitter(offset=100, number=7)
    assert splitter.feed(b"") == []
    (line,) = splitter.feed(b"one\ntw")
    assert (line.offset, line.number) == (100, 7)
    assert (splitter.offset, splitter.number, splitter.open_bytes) == (104, 8, 2)
    last = splitter.finish()
    assert last is not None
    assert (last.offset, last.number, last.raw) == (104, 8, b"tw")
    assert splitter.finish() is None


def test_lines_from_a_number_in_the_middle_of_a_chunk() -> None:
    chunks = [b"a\nb\n", b"c\nd\ne"]
    assert [(line.number, line.offset, line.raw) for line in lines_from(chunks, 3)] == [
        (3, 4, b"c"),
        (4, 6, b"d"),
        (5, 8, b"e"),
    ]
    assert [line.number for line in lines_from(chunks, 5)] == [5]
    assert list(lines_from(chunks, 6)) == []


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


def test_of_very_many_digits_the_first_count() -> None:
    assert whole("9" * MOST_DIGITS) == 10**MOST_DIGITS - 1
    assert whole("9" * (MOST_DIGITS + 1)) == 10**MOST_DIGITS - 1
    assert whole("1" * 5000) == int("1" * MOST_DIGITS)


# -- prefixes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "others", "known"),
    [(2, 2, True), (2, 4, False), (1, 0, False), (34, 66, True), (33, 67, False)],
)
def test_hosts_are_two_at_least_and_lead_a_third_of_the_lines(hosts: int, others: int, known: bool) -> None:
    lines = [f"alpha-{at % 2}: x" for at in range(hosts)] + ["nothing here"] * others + ["", "  "]
    assert learn_hosts(lines) == (frozenset({"alpha-0", "alpha-1"}) if known else frozenset())


@pytest.mark.parametrize(
    ("bare", "others", "known"), [(8, 0, True), (7, 0, False), (4, 4, True), (4, 5, False)]
)
def test_bare_numbers_lead_half_of_eight_lines(bare: int, others: int, known: bool) -> None:
    lines = [f"[{at}] x" for at in range(bare)] + ["plain text"] * others
    assert (NUMBERED in learn_hosts(lines)) is known


def test_known_hosts_and_numbers_are_taken_off() -> None:
    assert split_prefix("[3] x", {NUMBERED}) == (Origin(task=3), "x")
    assert split_prefix("[3] x") == (Origin(), "[3] x")
    assert split_prefix("0: [3] x", {NUMBERED}) == (Origin(task=0), "[3] x"), "a task has one number"
    assert split_prefix("alpha | x", {"alpha"}) == (Origin(node="alpha"), "x")
    assert split_prefix("beta | x", {"alpha"}) == (Origin(), "beta | x")


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


def traceback(between: int) -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 3, in <module>',
        "    main()",
        *['  File "/usr/lib/python3.11/x.py", line 1, in f'] * between,
        "KeyError: 1",
    ]


def test_a_traceback_is_looked_at_so_far_up() -> None:
    near, far = traceback(LOOKED_AT - 2), traceback(LOOKED_AT - 1)
    assert own_line(near, len(near) - 1) == CodeLine("/job/train.py", 3, "main()")
    assert own_line(far, len(far) - 1) is None
