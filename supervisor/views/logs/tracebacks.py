"""Lines that belong together: a traceback, the report that torchrun ends with; in a list of texts, and in a file.

A traceback is one thing: what folds equal lines or sorts lines by time takes it whole or leaves it alone, from whatever
place a page begins. torchrun's own traceback (`torch.distributed.elastic`: SignalException, ChildFailedError) repeats
what its table and the ranks' lines say; views show it as one line until somebody opens it.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from supervisor.views.logs.file import LogFile, TextLine, segment_of
from supervisor.views.logs.sources import split_rank

# What every first line of a traceback holds ("most recent call last"): Python's own, rich's, faulthandler's.
MARK = "(most"
# A deep stack with its causes; what is longer is two blocks.
MOST_LINES = 400
# torchrun's table has 7 lines a failed rank: some hundred ranks.
MOST_REPORT_LINES = 1200
# Lines above a place that no traceback holds, but its exceptions' own: beyond these none is looked for.
MOST_FOREIGN_LINES = 3

_HEAD = re.compile(
    r"Traceback \(most recent call last\):?\s*$"
    r"|╭.*Traceback \(most recent call last\)"
    r"|(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):"
)
_JOINT = re.compile(
    r"During handling of the above exception, another|The above exception was the direct cause"
)
_LAUNCHER = re.compile(
    r"torch\.distributed\.elastic\.[\w.]*\b(?P<name>SignalException|ChildFailedError)\b:? ?(?P<message>.*)"
)
_RULE = re.compile(r"=+$")
_TABLE = re.compile(r"[=-]+$|\[\d+\]:$|Failures:$|Root Cause |.* FAILED$")
_WHO = re.compile(r"\s+(rank|exitcode)\s+: (-?\d+)")

At = Callable[[int], str | None]


class Block(NamedTuple):
    """How many lines belong together; `ended`: no further line can belong to it. `message`: the line that names the exception."""

    lines: int
    ended: bool = True
    message: str = ""

    @property
    def is_report(self) -> bool:
        """Whether this is torchrun's own traceback, as a whole."""
        return self.ended and _LAUNCHER.match(self.message) is not None


def is_head(text: str) -> bool:
    """Whether a traceback begins with this line."""
    return MARK in text and _HEAD.match(text) is not None


def block_at(at: At) -> Block | None:
    """The traceback that begins with line 0, with what it was caused by or led to; None: none begins there.

    Args:
        at: the text of a line from there on; None: there is none (yet), or another rank wrote it.
    """
    head = at(0)
    if head is None or not is_head(head):
        return None
    block = _one(at, 0)
    # A cause and its effect: a blank line, what joins them, a blank line, the next head.
    while block.ended and block.lines < MOST_LINES and (after := _joined(at, block.lines)) is not None:
        block = _one(at, after)
    if block.ended and (match := _LAUNCHER.match(block.message)) and match["name"] == "ChildFailedError":
        return _with_table(at, block)
    return block


def _one(at: At, head: int) -> Block:
    first = at(head) or ""
    if first.startswith("╭"):
        return _boxed(at, head)
    return _frames(at, head + 1, is_trace=first.startswith("Traceback"))


def _frames(at: At, start: int, *, is_trace: bool = True) -> Block:
    n = start
    while n < start + MOST_LINES and (text := at(n)) is not None and (text[:1].isspace() or not text):
        n += 1
    text = at(n)
    if text is None:
        return Block(n, ended=False)
    return _message(at, n) if is_trace and not is_head(text) else Block(n)  # a stack ends with no message


def _boxed(at: At, head: int) -> Block:
    n = head + 1
    while n < head + MOST_LINES and (text := at(n)) is not None and text.startswith("│"):
        n += 1
    text = at(n)
    if text is None:
        return Block(n, ended=False)
    if not text.startswith("╰"):
        return Block(n)
    return _message(at, n + 1) if at(n + 1) is not None else Block(n + 1, ended=False)


def _message(at: At, n: int) -> Block:
    """The line that names the exception, and what of its message is indented."""
    message = at(n) or ""
    n += 1
    while (text := at(n)) is not None and text[:1].isspace() and text.strip():
        n += 1
    return Block(n, ended=True, message=message)


def _joined(at: At, n: int) -> int | None:
    """Where the next traceback of the chain begins, if the lines from `n` on join it to the one before."""
    seen = False
    for i in range(n, n + 4):
        text = at(i)
        if text is None:
            return None
        if seen and is_head(text):
            return i
        if _JOINT.match(text):
            seen = True
        elif text.strip():
            return None
    return None


def _with_table(at: At, block: Block) -> Block:
    n = block.lines
    if (text := at(n)) is None:
        return block._replace(ended=False)
    if not _RULE.match(text):
        return block
    for i in range(n + 1, n + MOST_REPORT_LINES):
        if (text := at(i)) is None:
            return block._replace(lines=i, ended=False)
        if _RULE.match(text):
            return block._replace(lines=i + 1)
    return block


def texts_from(texts: Sequence[str], start: int) -> At:
    """The texts from one on, for `block_at`."""
    return lambda n: texts[start + n] if start + n < len(texts) else None


def may_be_inside(text: str, before: str) -> bool:
    """Whether a line may stand within a block, judged by it and the one before alone."""
    return (
        text[:1].isspace()
        or not text
        or before[:1].isspace()
        or text[:1] in "│╰"
        or before[:1] == "╰"
        or is_head(before)
        or _JOINT.match(text) is not None
        or _JOINT.match(before) is not None
        or _TABLE.match(text) is not None
        or _TABLE.match(before) is not None
    )


def summary(texts: Sequence[str], block: Block) -> str:
    """torchrun's report in one line."""
    match = _LAUNCHER.match(block.message)
    if match is None:
        return block.message
    if match["name"] != "ChildFailedError":
        return f"launcher: {match['name']}: {match['message']}"
    table = texts[next((n for n, text in enumerate(texts) if _RULE.match(text)), len(texts)) :]
    what = next((text for text in table if text.endswith(" FAILED")), "")
    cause = table[next((n for n, text in enumerate(table) if text.startswith("Root Cause")), len(table)) :]
    who = " ".join(f"{found[1]} {found[2]}" for text in cause if (found := _WHO.match(text)))
    return f"launcher: {match['name']}: {', '.join(part for part in (what, who) if part)}"


class Trace(NamedTuple):
    """A traceback in a file. `above`: how many of its lines come before the place that was asked for."""

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
            read.append((line, *split_rank(line.text, who)))
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
    writer, text = split_rank(lines[at].text, who)
    if at and not may_be_inside(text, split_rank(lines[at - 1].text, who)[1]):
        return None
    for above, head in reversed(list(_heads_above(file, who, offset, writer, text))):
        trace = trace_from(file, who, head, above)  # the first of those that led to one another
        if trace is not None and trace.block.lines > above:
            return trace
    return None


def _heads_above(file: LogFile, who: str, offset: int, writer: str, text: str) -> Iterator[tuple[int, int]]:
    """How many lines above a line, and where, tracebacks begin that it may be a part of, the nearest first."""
    foreign = 0
    below = text
    for n, line in enumerate(itertools.islice(file.backward(offset), MOST_REPORT_LINES), 1):
        whose, line_text = split_rank(line.text, who)
        if (
            whose != writer
            or foreign > MOST_FOREIGN_LINES
            or (n == 1 and not may_be_inside(below, line_text))
        ):
            return
        if is_head(line_text):
            foreign = 0
            yield n, line.offset
        elif not may_be_inside(line_text, ""):
            foreign += 1


def _offset(line: TextLine) -> int:
    return line.offset
