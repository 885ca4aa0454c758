"""What was learnt of a line's shape says what the grammar says, and is bounded."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.sources.metrics import MetricReader
from tests.conftest import not_none
from tests.sources.metric_lines import corpus_lines, corpus_texts, same, values

LINES = corpus_lines()


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
@given(line=st.sampled_from(LINES), data=st.data())
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
