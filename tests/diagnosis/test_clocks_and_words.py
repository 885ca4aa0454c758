"""Times, silences, losses and messages of a log: each form once, and what is just beside it."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.scan.log_timeline import bar_went_on, silence
from supervisor.diagnosis.scan.matched_lines import SourceScan
from supervisor.text.prefixes import Origin


def step(second: int, number: int) -> str:
    return f"2026-01-01 10:{second // 60:02d}:{second % 60:02d} step {number} loss 2.0"


def test_how_long_it_was_silent_at_the_end() -> None:
    lines = [step(10 * at, at) for at in range(6)]
    assert silence([*lines, "2026-01-01 10:05:00 stopped"]) == (250.0, 10.0, 10.0)
    assert silence(lines) is None, "nothing came later"
    assert silence([*lines[:1], "2026-01-01 10:05:00 a", "2026-01-01 10:06:00 b"]) is None, (
        "one step has no pace"
    )
    two = [*lines[:2], "2026-01-01 10:05:00 a"]
    assert silence(two) == (290.0, 10.0, 10.0)
    assert silence(two[:2]) is None
    gaps = [*lines, "2026-01-01 10:01:00 a", "2026-01-01 10:09:00 b", "2026-01-01 10:09:01 c"]
    assert silence(gaps) == (480.0, 10.0, 10.0), "the largest"


# -- the same failure again ---------------------------------------------------------------------------------------


# -- a rank's last words -----------------------------------------------------------------------------------------


def scan(origin: Origin, *tail: str) -> SourceScan:
    return SourceScan("err.log", origin, (), len(tail), 0, (), tail, 10)


@pytest.mark.parametrize(
    ("before", "after", "went_on"),
    [
        (b" 2%| | 108/5153 [08:05<1", b" 2%| | 109/5153 [08:09<1 2%| | 120/5153 [09:05<1", True),
        (b" 2%| | 108/5153 [08:05<1", b" 2%| | 109/5153 [08:09<1", False),
        (b" 2%| | 108/5153 [08:05<1", b" 2%| | 120/999 [09:05<1", False),
        (b" 0%| | 0/5153 [00:00<1", b" 2%| | 120/5153 [09:05<1", False),
        (b"", b" 2%| | 120/5153 [09:05<1", False),
        (b" 2%| | 108/5153 [08:05<1", b"Traceback\n 2%| | 120/5153 [09:05<1", False),
    ],
)
def test_whether_a_bar_went_on(before: bytes, after: bytes, went_on: bool) -> None:
    assert bar_went_on(before, after) is went_on
