from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.lines import LineSplitter, lines_from


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
