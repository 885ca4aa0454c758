"""When a watched job began and ended, by the clocks in its logs: the watching says nothing of that."""

from __future__ import annotations

import os
from collections.abc import Iterable

from supervisor.run.regular import open_regular
from supervisor.text.decode import clean
from supervisor.text.stamps import span_of

LOOKED_AT_BYTES = 1 << 16
LOOKED_AT_LINES = 400


def span_of_logs(logs: Iterable[tuple[str, str]]) -> tuple[float, float] | None:
    """The first and the last time, wall seconds, that logs of one job carry; None: none carries any.

    Args:
        logs: the path of each, and where it can be read as it is.
    """
    spans = [span for path, plain in logs if (span := _span(path, plain)) is not None]
    if not spans:
        return None
    return min(first for first, _ in spans), max(last for _, last in spans)


def _span(path: str, plain: str) -> tuple[float, float] | None:
    try:
        written_t = os.stat(path).st_mtime  # a plain copy's own time says nothing
        with open_regular(plain) as file:
            size = os.fstat(file.fileno()).st_size
            head = os.pread(file.fileno(), LOOKED_AT_BYTES, 0)
            tail = os.pread(file.fileno(), LOOKED_AT_BYTES, max(size - LOOKED_AT_BYTES, 0))
    except OSError:
        return None
    first = [clean(raw) for raw in head.splitlines()[:LOOKED_AT_LINES]]
    last = [clean(raw) for raw in tail.splitlines()[-LOOKED_AT_LINES:]]
    return span_of(first, last, written_t)
