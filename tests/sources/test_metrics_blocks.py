"""Many lines read at once say what they say one by one, hostile ones included."""

from __future__ import annotations

from supervisor.sources.metrics import MetricReader, MetricSample
from supervisor.sources.metrics.metric_reader import MAX_LINE
from supervisor.text.decode import clean
from tests.sources.metric_lines import corpus_texts, read, same


def one_by_one(lines: list[bytes]) -> list[MetricSample | None]:
    """What a reader says that is given one line after the other."""
    reader = MetricReader()
    return [reader.feed(clean(raw)) for raw in lines]


def in_blocks(lines: list[bytes], sizes: list[int]) -> list[MetricSample | None]:
    """What a reader says that is given blocks of these sizes in turn."""
    reader = MetricReader()
    found: list[MetricSample | None] = []
    place = turn = 0
    while place < len(lines):
        size = sizes[turn % len(sizes)]
        found += read(reader, lines[place : place + size])
        place, turn = place + size, turn + 1
    return found


def check(lines: list[bytes], sizes: list[int]) -> None:
    """The same samples, line for line."""
    found = in_blocks(lines, sizes)
    expected = one_by_one(lines)
    assert len(found) == len(expected)
    for raw, mine, other in zip(lines, found, expected, strict=True):
        assert same(mine, other), raw


def test_logs_say_the_same_in_blocks() -> None:
    # Headers, blocks of settings and headings included, as the bytes that a log holds.
    logs = [text.encode("utf-8", "surrogatepass").split(b"\n") for text in corpus_texts()]
    for place, log in enumerate(logs[::27]):
        check(3 * log, [(1, 7, 1000)[place % 3]])


def test_lines_of_several_shapes_in_turn_are_read_a_shape_at_a_time() -> None:
    lines = [
        line.encode()
        for n in range(50)
        for line in (
            f"step {n} loss 2.{n}",
            f"GPU mem {n}.5GB used of the node",
            f"it {n}: loss=2.{n}, lr=0.1",
        )
    ]
    reader = MetricReader()
    read(reader, lines[:9])
    assert [len(rows) for rows, _ in reader.read_columns(lines)].count(50) >= 2
    check(lines, [150])


def test_a_line_that_is_too_long_is_read_by_its_beginning_wherever_it_stands() -> None:
    short, limit = b'{"step": 1, "loss": 2.5}', b'{"step": 1, "loss": 2.%s}' % (b"5" * (MAX_LINE - 23))
    assert len(limit) == MAX_LINE
    for place in range(0, 60, 7):
        check([short] * place + [limit, limit.replace(b"}", b"5}")] + [short] * (60 - place), [60])
