"""Metric lines: formats, a user's rules, shapes, blocks; hostile lines, and lines that only speak of a loss."""

from __future__ import annotations

import json
import re
import time
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.cli.metrics import record_of
from supervisor.sources.metrics import MetricReader, MetricSample, formats
from supervisor.sources.metrics.formats import FORMATS, Format, Where
from supervisor.sources.metrics.metric_reader import MAX_LINE
from supervisor.sources.metrics.names import CANONICAL
from supervisor.text.decode import clean
from supervisor.text.patterns import compile_linear
from tests.conftest import not_none
from tests.sources.lookalikes import BLOCKS, LINES, NAMES, NUMBERS, PREFIXES, filled
from tests.sources.metric_lines import corpus_lines, corpus_texts, read, same, values

PAGE = (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.example)
def test_the_example_of_a_format_is_found_by_it(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    assert form.pattern.search(form.example) is not None
    with_it = MetricReader().feed(form.example)
    monkeypatch.setattr(formats, "FORMATS", tuple(other for other in FORMATS if other is not form))
    without = MetricReader().feed(form.example)
    assert with_it is not None
    assert without is None or without.values != with_it.values, "nothing else reads it so"


def test_a_format_is_added_as_the_page_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE[PAGE.index("## How to add a format") :]
    entry, printed = (
        found[1]
        for language in ("python", "json")
        if (found := re.search(rf"```{language}\n(.*?)\n```", section, re.DOTALL))
    )
    printed_line = next(row.strip() for row in section.splitlines() if row.startswith("    "))
    assert MetricReader().feed(printed_line) is None
    form = eval(entry, {"Format": Format, "Where": Where, "re": re})
    assert form.example == printed_line
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, form))
    sample = not_none(MetricReader().feed(printed_line))
    assert record_of(0, sample) == json.loads(printed)


def test_rules_of_the_user_come_first() -> None:
    rules = {"loss": r"my number is ([\d.]+)", "sparkle": r"sparkle:([-\d.]+)"}
    reader = MetricReader([(name, compile_linear(regex)) for name, regex in rules.items()])
    for _ in range(2):
        sample = not_none(reader.feed("step 3 loss 9.0 my number is 1.5 sparkle:-2"))
        assert sample.loss == 1.5
        assert sample.other["sparkle"] == -2.0


def test_no_rule_of_a_user_can_hang_on_a_line() -> None:
    # Under Python's own engine this line would take longer than the universe has.
    reader = MetricReader([("x", compile_linear(r"(a+)+b"))])
    start = time.process_time()
    for _ in range(20):
        assert reader.feed("a" * 4000) is None
    assert time.process_time() - start < 1.0
    for pattern in (r"(?<=loss )(\d+)", r"(\d+) \1"):
        with pytest.raises(ValueError, match="could hang"):
            compile_linear(pattern)


CORPUS_LINES = corpus_lines()


def test_names_that_differ_in_a_digit_are_not_mixed_up() -> None:
    reader = MetricReader()
    first = reader.feed("step 1 loss 2.0 Acc@1 31.5")
    second = reader.feed("step 2 loss 1.0 Acc@5 61.5")
    assert first is not None
    assert second is not None
    assert first.other == {"Acc@1": 31.5}
    assert second.other == {"Acc@5": 61.5}


def test_what_differs_in_digits_alone_may_differ_in_meaning() -> None:
    reader = MetricReader()
    assert (
        values("iter 24/50 completed (loss: 1.3):  50%|█████     | 25/50 [04:31<04:30, 10.82s/it]")[
            "total_steps"
        ]
        == 50
    )
    # A pair is the named counter's only if both agree.
    near = reader.feed("epoch 001:    500 / 1891 loss=10.3, num_updates=501, lr=9.6e-05")
    far = reader.feed("epoch 001:    500 / 1891 loss=10.3, num_updates=905, lr=9.6e-05")
    assert near is not None
    assert far is not None
    assert near.values["total_steps"] == 1891
    assert "total_steps" not in far.values


def test_a_bare_bar_in_its_first_second_teaches_nothing() -> None:
    reader = MetricReader()
    for _ in range(3):
        assert reader.feed("100%|██████████| 218/218 [00:00<00:00, 341.68it/s]") is None, "a list was read"
    sample = not_none(reader.feed("110%|██████████| 218/228 [00:00<00:00, 311.68it/s]"))
    assert (sample.step, sample.values["total_steps"]) == (218, 228)


def test_a_log_of_ever_new_shapes_stays_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 200
    monkeypatch.setattr("supervisor.sources.metrics.metric_reader.MAX_SHAPES", most)
    reader = MetricReader()
    for number in range(2 * most + 50):
        line = "x" * (number % 97) + " " + "ab"[number % 2] * (number // 97) + f" step {number} loss 2.5"
        for _ in range(2):
            reader.feed(line)
    assert sum(len(known.by_shape) for known in reader._states.values()) <= most + 1
    assert all(known.steady <= set(known.by_shape) for known in reader._states.values())
    sample = not_none(reader.feed("step 5 loss 2.5"))
    assert sample.step == 5


# A year stays one: "Oct 29 17:00:03 2023" with a 7 for its year would be a time and a step.
NUMBER = re.compile(r"(?<![\w@./:,-])(?!20[0-3]\d\b)([1-9]\d*)(?:(\.)(\d+))?(?![\w:/,%-])")


@settings(max_examples=100, deadline=None)
@given(line=st.sampled_from(CORPUS_LINES), data=st.data())
def test_what_was_learnt_serves_numbers_of_other_lengths(line: str, data: st.DataObject) -> None:
    def another(found: re.Match[str]) -> str:
        whole = str(data.draw(st.integers(1, 999_999)))
        return whole + ("." + str(data.draw(st.integers(0, 99_999))) if found[2] else "")

    other = NUMBER.sub(another, line)
    warm, cold = MetricReader(), MetricReader()
    warm.feed(line)
    expected = cold.feed(other)
    for _ in range(2):  # by the grammar or the shape, by the shape
        warm._known = warm._states[MetricReader()._known.state]
        assert same(warm.feed(other), expected)


def test_a_log_reads_the_same_however_much_was_learnt_before() -> None:
    # Headers, blocks and bars included: what was learnt in one state must not speak in another.
    logs = [text.replace("\r", " ").split("\n") for text in corpus_texts()[::12]]
    cold = [[reader.feed(line) for line in log] for log in logs for reader in (MetricReader(),)]
    warm = MetricReader()
    start = warm._known
    for _ in range(2):  # by the grammar, by the shape
        for log, expected in zip(logs, cold, strict=True):
            warm._known = start
            for line, sample in zip(log, expected, strict=True):
                assert same(warm.feed(line), sample), line


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


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.text(max_size=120), st.text(alphabet="0123456789:=/|.,-[](){}%'\" estploraing", max_size=120)
    )
)
def test_nothing_makes_it_raise(line: str) -> None:
    reader = MetricReader()
    for _ in range(2):
        sample = reader.feed(line)
        if sample is not None:
            assert set(sample.values) <= set(CANONICAL)


@pytest.mark.parametrize(
    "piece",
    [
        "1",
        "1 ",
        "1/",
        "1,",
        "1:",
        "a=1 ",
        "[",
        "1d ",
        "1m1m",
        "━",
        "|",
        "a",
        "a.",
        "100%|",
        "loss ",
        "(",
        "1 of ",
        "1.5e-3,",
        "-1",
        "a/b/",
        ".",
    ],
)
def test_no_line_takes_long_whatever_it_is_made_of(piece: str) -> None:
    # A line of 8192 characters takes some 100 ms at worst; patterns that backtrack would take minutes.
    line = (piece * MAX_LINE)[:MAX_LINE]
    start = time.process_time()
    MetricReader().feed(line)
    assert time.process_time() - start < 2.0


ALL_LINES = [template for templates in LINES.values() for template in templates]


def losses(lines: list[str]) -> list[str]:
    """The lines of which a fresh reader makes a loss."""
    reader = MetricReader()
    return [
        line
        for line in lines
        if (sample := reader.feed(line)) is not None and {"loss", "val_loss"} & set(sample.values)
    ]


@pytest.mark.parametrize("family", LINES)
def test_no_loss_is_made_of_lines_that_speak_of_one(family: str) -> None:
    prefixes = cycle(PREFIXES)
    found = [
        line
        for template in LINES[family]
        for name in NAMES
        for number in NUMBERS[:1]
        for line in losses([next(prefixes) + filled(template, name, number)])
    ]
    assert not found


@given(st.data())
def test_a_log_that_only_speaks_of_losses_has_none(data: st.DataObject) -> None:
    # In any order: what one line leaves behind must not make a loss of the next.
    lines: list[str] = []
    for _ in range(data.draw(st.integers(2, 8))):
        block = data.draw(st.one_of(st.sampled_from(BLOCKS), st.sampled_from(ALL_LINES).map(lambda t: (t,))))
        name, number = data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(NUMBERS))
        lines += [filled(line, name, number) for line in block]
        lines.append("")
    assert not losses(lines)
