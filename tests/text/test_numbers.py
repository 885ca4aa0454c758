"""Numbers as people are told them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.text.lines import read_to


@pytest.mark.parametrize(("read", "size", "said"), [
    (120_000_000, 600_000_000, "log read to 120 of 600 MB"),
    (599_999_999, 600_000_000, "log read to 599 of 600 MB"),
    (12_340_000_000, 60_000_000_001, "log read to 12.3 of 60.1 GB"),
    (300, 840, "log read to 300 of 840 bytes"),
    (0, 9_000_000, "log read to 0 of 9000 KB"),
    (None, None, ""),
])  # fmt: skip
def test_how_far_a_log_was_read(read: int | None, size: int | None, said: str) -> None:
    assert read_to(read, size) == said


@given(st.integers(1, 10**13), st.data())
def test_what_was_read_never_looks_like_all(size: int, data: st.DataObject) -> None:
    said = read_to(data.draw(st.integers(0, size - 1)), size).split()
    assert float(said[3]) < float(said[5])
