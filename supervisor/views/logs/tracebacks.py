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
from supervisor.views.logs.sources import AGENT, split_rank

# What every first line of a traceback holds ("most recent call last"): Python's own, rich's, faulthandler's.
MARK = "(most"
# A deep stack with its causes; what is longer is two blocks.
MOST_LINES = 400
# torchrun's table has 7 lines a failed rank: some hundred ranks.
MOST_REPORT_LINES = 1200
# Lines above a place that no traceback holds, but its exceptions' own: beyond these none is looked for.
MOST_FOREIGN_LINES = 3
# Blank lines within a message.
BLANK_LINES = 5

_HEAD = re.compile(
    r"Traceback \(most recent call last\):?\s*$"
    r"|╭.*Traceback \(most recent call last\)"
    r"|(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):"
)
# A DataLoader worker's own traceback, within the message of the exception that it led to.
_ORIGINAL = re.compile(r"Original Traceback \(most recent call last\):\s*$")
# Lines of messages of PyTorch that are not indented.
_MORE = re.compile(
    r"CUDA kernel errors might be|For debugging consider passing CUDA|Compile with `TORCH_USE_CUDA_DSA|Exception raised from "
    r"|frame #\d+:|Last error:|\(Triggered internally at"
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
IsMore = Callable[[int], bool]


def _never(_n: int) -> bool:
    return False


def is_of_hook(line: str, who: str) -> bool:
    """Whether PyTorch's own hook for exceptions wrote a line: in a rank's own log it alone puts ``[rank1]:`` before each line."""
    return who not in {AGENT, ""} and split_rank(line, who)[1] != line


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


def block_at(at: At, is_more: IsMore = _never) -> Block | None:
    """The traceback that begins with line 0, with what it was caused by or led to; None: none begins there.

    Args:
        at: the text of a line from there on; None: there is none (yet), or another rank wrote it.
        is_more: whether a line is known to belong to what was printed before it (`is_of_hook`): a message may have any lines.
    """
    head = at(0)
    if head is None or not is_head(head):
        return None
    if not is_more(0):
        is_more = _never
    block = _one(at, 0, is_more)
    # A cause and its effect: a blank line, what joins them, a blank line, the next head.
    while block.ended and block.lines < MOST_LINES and (after := _joined(at, block.lines)) is not None:
        block = _one(at, after, is_more)
    if block.ended and (match := _LAUNCHER.match(block.message)) and match["name"] == "ChildFailedError":
        return _with_table(at, block)
    return block


def _one(at: At, head: int, is_more: IsMore) -> Block:
    first = at(head) or ""
    if first.startswith("╭"):
        return _boxed(at, head, is_more)
    return _frames(at, head + 1, is_more, is_trace=first.startswith(("Traceback", "Original Traceback")))


def _frames(at: At, start: int, is_more: IsMore, *, is_trace: bool = True) -> Block:
    n = start
    while n < start + MOST_LINES and (text := at(n)) is not None and (text[:1].isspace() or not text):
        n += 1
    text = at(n)
    if text is None:
        return Block(n, ended=False)
    return (
        _message(at, n, is_more) if is_trace and not is_head(text) else Block(n)
    )  # a stack ends with no message


def _boxed(at: At, head: int, is_more: IsMore) -> Block:
    n = head + 1
    while n < head + MOST_LINES and (text := at(n)) is not None and text.startswith("│"):
        n += 1
    text = at(n)
    if text is None:
        return Block(n, ended=False)
    if not text.startswith("╰"):
        return Block(n)
    return _message(at, n + 1, is_more) if at(n + 1) is not None else Block(n + 1, ended=False)


def _message(at: At, n: int, is_more: IsMore) -> Block:
    """The line that names the exception, and what more there is of its message."""
    message, most = at(n) or "", n + MOST_LINES
    n += 1
    while n < most and (text := at(n)) is not None:
        if (text[:1].isspace() and text.strip()) or is_more(n) or _MORE.match(text):
            n += 1
            continue
        # The hook leaves blank lines as they are.
        below = next((i for i in range(n, n + BLANK_LINES) if at(i) is None or (at(i) or "").strip()), n)
        if below == n or at(below) is None or not is_more(below):
            break
        n = below
    return Block(n, ended=True, message=message)


def _joined(at: At, n: int) -> int | None:
    """Where the next traceback of the chain begins, if the lines from `n` on join it to the one before."""
    if _ORIGINAL.match(at(n) or ""):
        return n
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
        or _ORIGINAL.match(text) is not None
        or _ORIGINAL.match(before) is not None
        or _MORE.match(text) is not None
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

    def is_more(n: int) -> bool:
        return at(n) is not None and is_of_hook(read[n][0].text, who)

    block = block_at(at, is_more)
    return Trace(block, above, offset, read[block.lines - 1][0]) if block is not None else None


def trace_around(file: LogFile, who: str, offset: int) -> Trace | None:
    """The traceback that is begun before the line at `offset` and continues with it; None: it is of none."""
    if not offset:
        return None
    lines = file.segment(segment_of(offset))
    at = bisect_left(lines, offset, key=_offset)
    if at >= len(lines) or lines[at].offset != offset:
        return None
    writer, text = split_rank(lines[at].text, who)
    is_printed = is_of_hook(lines[at].text, who) or not text
    if at and not is_printed and not may_be_inside(text, split_rank(lines[at - 1].text, who)[1]):
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
            or (
                n == 1
                and not is_of_hook(line.text, who)
                and line_text
                and not may_be_inside(below, line_text)
            )
        ):
            return
        if is_head(line_text):
            foreign = 0
            yield n, line.offset
        elif not is_of_hook(line.text, who) and not may_be_inside(line_text, ""):
            foreign += 1


def _offset(line: TextLine) -> int:
    return line.offset
