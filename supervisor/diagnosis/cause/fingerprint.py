"""The same failure again? A failure's text with its volatile parts removed, as a short hash."""

from __future__ import annotations

from functools import cache

from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy


@cache
def _volatile() -> tuple[tuple[Lazy, str], ...]:
    return tuple(
        (Lazy(pattern), to)
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
    form = f"{failure}|{reason or ''}|{plain_form(text)}"
    return f"{_fnv1a(form.encode()):016x}"


def _fnv1a(data: bytes) -> int:
    """FNV-1a, 64 bits: hashlib's import costs more than the whole of it over 300 bytes."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value
