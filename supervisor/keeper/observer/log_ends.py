"""What the beginning and the end of a watched log say before it is read: its times, its last words."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from supervisor.keeper.observer.observed_run import ObservedLog
from supervisor.run.regular import open_regular
from supervisor.text.decode import clean
from supervisor.text.stamps import Span, span_of

LOOKED_AT_BYTES, LOOKED_AT_LINES = 1 << 16, 400
"""How much of each end of a log is looked at for clock times, or for what a training prints."""
END_BYTES = 1 << 20
"""How much of a large log's end is judged before the rest is read."""


def end_of(log: ObservedLog) -> Iterator[bytes]:
    """The last lines of a large log; a small one whole."""
    with open_regular(log.path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > END_BYTES:
            file.seek(size - END_BYTES)
            file.readline()  # a part of a line
        yield file.read(END_BYTES)


def both_ends(log: ObservedLog) -> tuple[list[str], list[str]]:
    """Some first and some last lines.

    Raises:
        OSError: the log cannot be read.
    """
    with open_regular(log.path) as file:
        size = os.fstat(file.fileno()).st_size
        head = os.pread(file.fileno(), LOOKED_AT_BYTES, 0)
        tail = os.pread(file.fileno(), LOOKED_AT_BYTES, max(size - LOOKED_AT_BYTES, 0))
    first = [clean(raw) for raw in head.splitlines()[:LOOKED_AT_LINES]]
    return first, [clean(raw) for raw in tail.splitlines()[-LOOKED_AT_LINES:]]


def last_written_t(logs: Iterable[ObservedLog]) -> float:
    """When the newest of the logs was last changed, wall seconds; 0 where there is none."""
    times = []
    for log in logs:
        with contextlib.suppress(OSError):
            times.append(os.stat(log.written).st_mtime)
    return max(times, default=0.0)


def span_of_logs(logs: Iterable[ObservedLog]) -> Span | None:
    """The first and the last time, wall seconds, in the logs of one job; None: they hold no times."""
    spans = []
    for log in logs:
        with contextlib.suppress(OSError):
            written_t = os.stat(log.written).st_mtime
            if (span := span_of(*both_ends(log), written_t, log.written)) is not None:
                spans.append(span)
    if not spans:
        return None
    return Span(
        min(span.began_t for span in spans),
        max(span.over_t for span in spans),
        all(span.is_dated for span in spans),
        all(span.is_copy for span in spans),
    )
