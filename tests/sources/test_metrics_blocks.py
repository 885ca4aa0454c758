"""Many lines read at once say what they say one by one, hostile ones included."""

from __future__ import annotations

import json
import random
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.sources.metrics import MetricReader, MetricSample, compile_rules
from supervisor.sources.metrics.metric_reader import MAX_LINE
from supervisor.sources.metrics.tokens import GIB, PLAIN, WHOLE, Conversion, How, convert, numbers
from supervisor.text.decode import clean
from tests.sources.metric_lines import corpus_lines, corpus_texts, read, same

LINES = corpus_lines()


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
    for place, log in enumerate(logs[::3]):
        check(3 * log, [(1, 7, 1000)[place % 3]])


def with_other_digits(line: str, draw: random.Random) -> str:
    """Other digits in the same places, and at times a number that is longer or begins with 0."""
    line = re.sub(r"\d", lambda _: draw.choice("0123456789"), line)
    if draw.random() < 0.2:
        line = re.sub(r"\d+", lambda found: found[0] * draw.randint(1, 3), line, count=draw.randint(1, 3))
    return line


@settings(max_examples=80, deadline=None)
@given(
    some=st.lists(st.sampled_from(LINES), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_runs_of_lines_that_differ_in_digits_say_the_same(
    some: list[str], seed: int, sizes: list[int]
) -> None:
    draw = random.Random(seed)
    lines: list[bytes] = []
    while len(lines) < 60:
        line = draw.choice(some)
        lines += [
            with_other_digits(line, draw).encode("utf-8", "surrogatepass")
            for _ in range(draw.choice((1, 2, 12)))
        ]
    check(lines, sizes)


def test_a_run_of_json_lines_is_read_at_once() -> None:
    lines = [json.dumps({"step": n, "loss": round(1 / (n + 1), 9)}).encode() for n in range(1000)]
    lines = [raw for raw in lines if b"e-" not in raw]
    blocks = [*MetricReader().read_columns(lines)]
    # The first tells that the log has a total loss, the second is learnt of.
    assert [len(rows) for rows, _ in blocks] == [1, 1, len(lines) - 2]
    _, columns = blocks[-1]
    assert columns.values["loss"] == [json.loads(raw)["loss"] for raw in lines[2:]]


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


def test_a_line_that_changes_what_the_next_mean_is_read_in_its_turn() -> None:
    # The header of a table stands between lines of known shapes.
    lines = [b"step 3 loss 2.5", b"epoch,loss,lr", b"1,2.5,0.1", b"step 4 loss 2.5", b"2,2.4,0.1"] * 20
    check(lines, [100])
    (last,) = read(MetricReader(), lines)[-1:]
    assert last is not None
    assert last.values["epoch"] == 2


def test_a_line_that_is_too_long_is_read_by_its_beginning_wherever_it_stands() -> None:
    short, limit = b'{"step": 1, "loss": 2.5}', b'{"step": 1, "loss": 2.%s}' % (b"5" * (MAX_LINE - 23))
    assert len(limit) == MAX_LINE
    for place in range(0, 60, 7):
        check([short] * place + [limit, limit.replace(b"}", b"5}")] + [short] * (60 - place), [60])


@given(
    st.lists(
        st.sampled_from(
            [
                "0",
                "7",
                "-7",
                "-0",
                "0.5",
                "-0.5",
                "-0.0",
                ".5",
                "5.",
                "007",
                "1,234",
                "1_000",
                "nan",
                "-inf",
                "1e5",
                "2.5e-04",
                "12345678901234",
                "0.30000000000000004",
                "x",
            ]
        ),
        min_size=1,
    ),
    st.sampled_from(
        [
            PLAIN,
            WHOLE,
            *(Conversion(how, scale) for how in How for scale in (1.0, 1e-3, 0.01, 60.0, float(GIB))),
        ]
    ),
)
def test_many_texts_convert_as_each_does(texts: list[str], conversion: Conversion) -> None:
    assert repr([*numbers(conversion, texts)]) == repr([convert(conversion, text) for text in texts])


def test_rules_of_the_user_come_first_in_blocks_too() -> None:
    reader = MetricReader(compile_rules([("loss", r"my number is ([\d.]+)")]))
    found = read(reader, [b"step 3 loss 9.0 my number is 1.5"] * 3)
    assert [sample.loss for sample in found if sample is not None] == [1.5] * 3
