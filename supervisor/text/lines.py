"""Split bytes into whole lines with positions, and report how far a log has been read, rounded for display."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from supervisor.text.decode import CAP_MARK, LINE_CAP_BYTES, clean


class Line(NamedTuple):
    """A line of a log. `offset` is the position of its first byte in the stream; `number` counts from 1."""

    offset: int
    number: int
    raw: bytes
    was_cut: bool = False

    @property
    def text(self) -> str:
        """The line as text that is safe to display (see `decode.clean`)."""
        text = clean(self.raw)
        return text + CAP_MARK if self.was_cut and not text.endswith(CAP_MARK) else text


class LineSplitter:
    """Splits a stream at newlines. Memory stays within `cap_bytes`, however long a line is.

    A line longer than the cap keeps its head. If it was redrawn with carriage returns, it keeps the tail
    instead, which has the latest state of a progress bar.

    Attributes:
        offset: the stream offset of the first byte of the open line.
        number: the open line's number, from 1.
        open_bytes: how many bytes of the open line have arrived.
    """

    __slots__ = ("_cap", "_cut", "_open", "number", "offset", "open_bytes")

    def __init__(self, offset: int = 0, number: int = 1, cap_bytes: int = 4 * LINE_CAP_BYTES) -> None:
        self._cap = cap_bytes
        self.offset = offset
        self.number = number
        self._open = b""
        self.open_bytes = 0
        self._cut = False

    def feed(self, data: bytes) -> list[Line]:
        """Take the next bytes of the stream. Return the lines they complete, with newlines removed."""
        if not data:
            return []
        rest = data.split(b"\n")
        lines: list[Line] = []
        if self.open_bytes:
            self._extend(rest.pop(0))
            if not rest:
                return []
            lines.append(self._close())
        last = rest.pop()
        offset, number, cap = self.offset, self.number, self._cap
        for raw in rest:
            size = len(raw)
            lines.append(
                Line(offset, number, raw) if size <= cap else Line(offset, number, *_capped(raw, cap))
            )
            offset += size + 1
            number += 1
        self.offset, self.number = offset, number
        if last:
            self._extend(last)
        return lines

    def finish(self) -> Line | None:
        """Close the stream and return the partial last line, if any."""
        return self._close() if self.open_bytes else None

    def _extend(self, data: bytes) -> None:
        self.open_bytes += len(data)
        if not self._cut or b"\r" in data:
            self._open += data
        if len(self._open) > self._cap:
            self._open, cut = _capped(self._open, self._cap)
            self._cut = self._cut or cut

    def _close(self) -> Line:
        line = Line(self.offset, self.number, self._open, self._cut)
        self.offset += self.open_bytes + 1
        self.number += 1
        self._open, self.open_bytes, self._cut = b"", 0, False
        return line


def lines_from(chunks: Iterable[bytes], first: int) -> Iterator[Line]:
    """Yield a stream's lines starting at number `first` (1-based). Earlier lines are only counted (about 0.3 s per GiB)."""
    number, offset = 1, 0
    splitter: LineSplitter | None = LineSplitter() if first <= 1 else None
    for chunk in chunks:
        data = chunk
        if splitter is None:
            newlines = chunk.count(b"\n")
            if number + newlines < first:
                number += newlines
                offset += len(chunk)
                continue
            at = 0
            for _ in range(first - number):
                at = chunk.index(b"\n", at) + 1
            splitter = LineSplitter(offset + at, first)
            data = chunk[at:]
        yield from splitter.feed(data)
    last = splitter.finish() if splitter is not None else None
    if last is not None:
        yield last


def _capped(raw: bytes, cap: int) -> tuple[bytes, bool]:
    """Cut a long line to the cap, keeping its latest progress state or else its start. Also return whether it was cut."""
    start = raw.rfind(b"\r", 0, len(raw.rstrip(b"\r"))) + 1
    if start:
        raw = raw[start:]
    return (raw[:cap], True) if len(raw) > cap else (raw, False)


def read_amounts(read_bytes: int | None, size_bytes: int | None) -> tuple[str, str, str] | None:
    """Return the amount read, the total and the unit, as in ``("120", "600", "MB")``, or None if either is unknown.

    The amount read is rounded down and the total is rounded up, so they never look equal.
    """
    if read_bytes is None or size_bytes is None:
        return None
    unit, step = next(
        (known for known in ((1e9, 0.1), (1e6, 1.0), (1e3, 1.0)) if size_bytes >= 10 * known[0]), (1.0, 1.0)
    )
    digits = 0 if step == 1.0 else 1
    done = math.floor(read_bytes / unit / step) * step
    whole = math.ceil(size_bytes / unit / step) * step
    name = {1e9: "GB", 1e6: "MB", 1e3: "KB"}.get(unit, "bytes")
    return f"{done:.{digits}f}", f"{whole:.{digits}f}", name


def read_to(read_bytes: int | None, size_bytes: int | None) -> str:
    """Return text such as ``log read to 120 of 600 MB``, or "" if either amount is unknown."""
    amounts = read_amounts(read_bytes, size_bytes)
    return "log read to {} of {} {}".format(*amounts) if amounts is not None else ""
