import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.lines import LineSplitter, lines_from, read_amounts


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 50))
def test_lines_do_not_depend_on_how_the_bytes_arrive(parts: list[bytes], size: int) -> None:
    data = b"\n".join(parts)
    splitter = LineSplitter()
    lines = [
        line for start in range(0, len(data), size) for line in splitter.feed(data[start : start + size])
    ]
    last = splitter.finish()
    if last is not None:
        lines.append(last)
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert [line.raw for line in lines] == expected
    assert [line.number for line in lines] == list(range(1, len(expected) + 1))
    for line in lines:
        assert data[line.offset : line.offset + len(line.raw)] == line.raw


def test_a_line_without_end_takes_no_memory() -> None:
    splitter = LineSplitter(cap_bytes=1000)
    for _ in range(1000):
        assert splitter.feed(b"x" * 10_000) == []
    (line,) = splitter.feed(b"\n")
    assert len(line.raw) == 1000
    assert line.was_cut
    assert line.text.endswith("[cut]")
    (after,) = splitter.feed(b"next\n")
    assert (after.offset, after.number) == (10_000_001, 2)


@given(
    texts=st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b".")), max_size=30),
    first=st.integers(-2, 35),
    cuts=st.integers(1, 40),
    ends=st.booleans(),
)
def test_lines_from_a_number_on_are_those_of_the_whole(
    texts: list[bytes], first: int, cuts: int, ends: bool
) -> None:
    data = b"\n".join(texts) + (b"\n" if ends and texts else b"")
    splitter = LineSplitter()
    whole = splitter.feed(data)
    last = splitter.finish()
    whole += [last] if last is not None else []
    chunks = [data[at : at + cuts] for at in range(0, len(data), cuts)]
    assert list(lines_from(chunks, first)) == [line for line in whole if line.number >= first]


def test_a_redrawn_line_keeps_its_newest_state_within_the_cap() -> None:
    splitter = LineSplitter(cap_bytes=10)
    (line,) = splitter.feed(b"0123456789abcdef\rnew state\r\n")
    assert (line.raw, line.was_cut) == (b"new state\r", False)
    (line,) = splitter.feed(b"\r" + b"y" * 11 + b"\n")
    assert (line.raw, line.was_cut) == (b"y" * 10, True)


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
