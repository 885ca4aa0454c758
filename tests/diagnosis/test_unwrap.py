"""A verdict does not hang on who wrote the log down: launchers, collectors, terminals, and parts of other logs around it."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.scan.windows import unwrapped

TRACE = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 88, in main',
    "    out = step(batch)",
]


def test_the_rank_of_a_prefix_is_kept() -> None:
    wrapped = "\n".join(f"2024-08-11 10:00:0{row} out | [rank3]: {line}" for row, line in enumerate(TRACE))
    bare = unwrapped(wrapped.encode()).decode().split("\n")
    assert bare == [f"[rank3]: {line}" for line in TRACE]


@pytest.mark.parametrize(
    "lines",
    [
        [f"[rank3]: {line}" for line in TRACE],
        [f"[default0]:{line}" for line in TRACE],
        [f"node1: {line}" for line in TRACE],
        # A logger that puts its label to the head alone, and a program's own records.
        ["ERROR:root:Traceback (most recent call last):", *TRACE[1:]],
        ['{"rank": 1, "level": "ERROR", "msg": "missing /data (ENOENT)", "exc": "FileNotFoundError"}'],
    ],
)
def test_what_launchers_and_programs_say_themselves_is_left(lines: list[str]) -> None:
    text = "\n".join(lines).encode()
    assert unwrapped(text) is text
