"""No line that only speaks of a loss is read as one."""

from __future__ import annotations

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.sources.metrics import MetricReader
from tests.sources.lookalikes import BLOCKS, LINES, NAMES, NUMBERS, PREFIXES, filled

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
