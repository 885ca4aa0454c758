"""The same failure again? A failure's text with its volatile parts removed, as a short hash."""

from __future__ import annotations

import re
from functools import cache

from supervisor.run.records import FailureClass, Reason


@cache
def _volatile() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple(
        (re.compile(pattern), to)
        for pattern, to in (
            (r"^\W*(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d\S*\s*)?(?:[\[(][^\])]{1,60}[\])]:?\s*)*", ""),
            (r"\b[IWEFD]\d{3,4} \d\d:\d\d:\d\d\.\d+ +(?:\d+ )?\S+\] ?", ""),
            (r"0x[0-9a-fA-F]+", "#"),
            (r"\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b", "#"),
            (r"/(?:[\w.@+-]+/)+", "/"),
            (r"[A-Z]:\\(?:[^\\\s]+\\)+", "/"),
            (r"(?:\d{1,3}\.){3}\d{1,3}", "#"),
            (r"\d+(?:\.\d+)?", "#"),
            (r"\s+", " "),
        )
    )


def plain_form(text: str) -> str:
    """A message without time stamps, ranks, addresses, paths and numbers."""
    for pattern, to in _volatile():
        text = pattern.sub(to, text)
    return text.strip()[:300]


def fingerprint(failure: FailureClass, reason: Reason | None, text: str) -> str:
    """16 hexadecimal digits that stay the same across attempts and runs of the same failure."""
    import hashlib

    return hashlib.sha256(f"{failure}\0{reason or ''}\0{plain_form(text)}".encode()).hexdigest()[:16]
