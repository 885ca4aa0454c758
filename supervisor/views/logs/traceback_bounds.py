"""Where a traceback begins and ends in a file: what is shown, timed and folded of it is the same from every place."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from supervisor.views.logs.blocks import MOST_REPORT_LINES, Block, block_at, is_head, may_be_inside
from supervisor.views.logs.file import LogFile, TextLine, segment_of
from supervisor.views.logs.newest import speaker_of

# Lines above a place that no traceback holds, but its exceptions' own: beyond these none is looked for.
STRANGERS = 3


class Trace(NamedTuple):
    """A traceback in a file. `above`: so many of its lines stand before the place that was asked for."""

    block: Block
    above: int
    head: int  # where its first line begins
    last: TextLine


def trace_from(file: LogFile, who: str, offset: int, above: int = 0) -> Trace | None:
    """The traceback whose first line begins at `offset`; None: none does.

    Args:
        file: the log.
        who: whose log it is.
        offset: where a line begins.
        above: handed on.
    """
    lines = file.forward(offset)
    read: list[tuple[TextLine, str, str]] = []

    def at(n: int) -> str | None:
        while len(read) <= n:
            line = next(lines, None)
            if line is None:
                return None
            read.append((line, *speaker_of(line.text, who)))
        return read[n][2] if read[n][1] == read[0][1] else None

    block = block_at(at)
    return Trace(block, above, offset, read[block.lines - 1][0]) if block is not None else None


def trace_around(file: LogFile, who: str, offset: int) -> Trace | None:
    """The traceback that is begun before the line at `offset` and goes on with it; None: it is of none."""
    if not offset:
        return None
    lines = file.segment(segment_of(offset))
    at = bisect_left(lines, offset, key=_offset)
    if at >= len(lines) or lines[at].offset != offset:
        return None
    speaker, text = speaker_of(lines[at].text, who)
    if at and not may_be_inside(text, speaker_of(lines[at - 1].text, who)[1]):
        return None
    for above, head in reversed(list(_heads_above(file, who, offset, speaker, text))):
        trace = trace_from(file, who, head, above)  # the first of those that led to one another
        if trace is not None and trace.block.lines > above:
            return trace
    return None


def _heads_above(file: LogFile, who: str, offset: int, speaker: str, text: str) -> Iterator[tuple[int, int]]:
    """How many lines above a line, and where, tracebacks begin that it may be a part of, the nearest first."""
    strangers = 0
    below = text
    for n, line in enumerate(itertools.islice(file.backward(offset), MOST_REPORT_LINES), 1):
        whose, said = speaker_of(line.text, who)
        if whose != speaker or strangers > STRANGERS or (n == 1 and not may_be_inside(below, said)):
            return
        if is_head(said):
            strangers = 0
            yield n, line.offset
        elif not may_be_inside(said, ""):
            strangers += 1


def _offset(line: TextLine) -> int:
    return line.offset
