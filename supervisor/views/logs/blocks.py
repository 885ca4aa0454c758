"""Lines that belong together: a traceback, the report that torchrun ends with (pure).

A traceback is one thing: what folds equal lines or sorts lines by time takes it whole or leaves it alone. torchrun's
own traceback (`torch.distributed.elastic`: SignalException, ChildFailedError) says nothing that its table or the ranks'
lines do not say; views show it as one line until somebody opens it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

# What every first line of a traceback holds ("most recent call last"): Python's own, rich's, faulthandler's.
MARK = "(most"
# A deep stack with its causes; what is longer is two blocks.
MOST_LINES = 400
# torchrun's table has 7 lines a failed rank: some hundred ranks.
MOST_REPORT_LINES = 1200

_HEAD = re.compile(
    r"Traceback \(most recent call last\):?\s*$"
    r"|╭.*Traceback \(most recent call last\)"
    r"|(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):"
)
_JOINT = re.compile(
    r"During handling of the above exception, another|The above exception was the direct cause"
)
_LAUNCHER = re.compile(
    r"torch\.distributed\.elastic\.[\w.]*\b(?P<name>SignalException|ChildFailedError)\b:? ?(?P<said>.*)"
)
_RULE = re.compile(r"=+$")
_TABLE = re.compile(r"[=-]+$|\[\d+\]:$|Failures:$|Root Cause |.* FAILED$")
_WHO = re.compile(r"\s+(rank|exitcode)\s+: (-?\d+)")

At = Callable[[int], str | None]


class Block(NamedTuple):
    """So many lines are one; `ended`: no further line can belong to it. `said`: the line that names the exception."""

    lines: int
    ended: bool = True
    said: str = ""

    @property
    def is_report(self) -> bool:
        """Whether this is torchrun's own traceback, as a whole."""
        return self.ended and _LAUNCHER.match(self.said) is not None


def is_head(text: str) -> bool:
    """Whether a traceback begins with this line."""
    return MARK in text and _HEAD.match(text) is not None


def block_at(at: At) -> Block | None:
    """The traceback that begins with line 0, with what it was caused by or led to; None: none begins there.

    Args:
        at: the text of a line from there on; None: there is none (yet), or somebody else said it.
    """
    head = at(0)
    if head is None or not is_head(head):
        return None
    block = _one(at, 0)
    # A cause and its effect: a blank line, what joins them, a blank line, the next head.
    while block.ended and block.lines < MOST_LINES and (after := _joined(at, block.lines)) is not None:
        block = _one(at, after)
    if block.ended and (match := _LAUNCHER.match(block.said)) and match["name"] == "ChildFailedError":
        return _with_table(at, block)
    return block


def rest_at(at: At) -> Block | None:
    """What is left of a traceback that was begun before line 0; None: nothing is.

    Args:
        at: see `block_at`.
    """
    text = at(0)
    return None if text is None or is_head(text) else _frames(at, 0)


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
    return _message(at, n) if is_trace and not is_head(text) else Block(n)  # stacks have no last word


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
    said = at(n) or ""
    n += 1
    while (text := at(n)) is not None and text[:1].isspace() and text.strip():
        n += 1
    return Block(n, ended=True, said=said)


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
    match = _LAUNCHER.match(block.said)
    if match is None:
        return block.said
    if match["name"] != "ChildFailedError":
        return f"launcher: {match['name']}: {match['said']}"
    table = texts[next((n for n, text in enumerate(texts) if _RULE.match(text)), len(texts)) :]
    what = next((text for text in table if text.endswith(" FAILED")), "")
    cause = table[next((n for n, text in enumerate(table) if text.startswith("Root Cause")), len(table)) :]
    who = " ".join(f"{found[1]} {found[2]}" for text in cause if (found := _WHO.match(text)))
    return f"launcher: {match['name']}: {', '.join(part for part in (what, who) if part)}"
