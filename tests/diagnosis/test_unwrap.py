"""A verdict does not hang on who wrote the log down: launchers, collectors, terminals, and parts of other logs around it."""

from __future__ import annotations

import pytest

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.scan.windows import unwrapped
from supervisor.diagnosis.verdict import diagnose
from supervisor.run.records import Verdict
from supervisor.sources.signature_files import Engine

STEPS = [f"step {number} loss {3 - number / 100:.3f}" for number in range(10, 16)]
TRACE = [
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 88, in main',
    "    out = step(batch)",
]


def judged(data: bytes, engine: Engine) -> Verdict:
    return diagnose(JobEvidence(logs=(LogSource("log", (data,)),)), engine.signatures, engine.matcher)


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


def test_a_programs_level_outlives_its_record(engine: Engine) -> None:
    lines = [
        f'{{"ts": "2024-08-11T10:00:0{row}Z", "level": "info", "msg": "{step}"}}'
        for row, step in enumerate(STEPS)
    ]
    notice = '{"ts": "2024-08-11T10:00:08Z", "level": "warn", "msg": "cannot write the cache: PermissionError: [Errno 13] Permission denied"}'
    warned = judged("".join(f"{line}\n" for line in [*lines, notice]).encode(), engine)
    assert warned.failure.value == "healthy"
    failed = judged(
        "".join(f"{line}\n" for line in [*lines, notice.replace('"warn"', '"error"')]).encode(), engine
    )
    assert failed.failure.value == "permission_denied"


def test_a_traceback_in_one_record_is_read_to_its_last_line(engine: Engine) -> None:
    record = b'{"level": "error", "msg": "Traceback (most recent call last):\\n  File \\"/w/x.py\\", line 3, in f\\n    g()\\nKeyError: \'labels\'"}\n'
    verdict = judged(b"".join(f"{line}\n".encode() for line in STEPS) + record, engine)
    assert (verdict.failure.value, verdict.cause.line if verdict.cause else None) == ("code_error", 7)
    assert verdict.cause is not None
    assert verdict.cause.text == "KeyError: 'labels'"
