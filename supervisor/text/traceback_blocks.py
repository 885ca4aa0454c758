"""Lines that belong together: a traceback with its causes, and the report that torchrun ends with (pure).

Views fold equal tracebacks of several ranks as wholes. torchrun's own traceback (`torch.distributed.elastic`: SignalException,
ChildFailedError) repeats what its table and the ranks' lines say; views show it as one line until somebody opens it.
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
IsHooks = Callable[[int], bool]


class Block(NamedTuple):
    """How many lines belong together. `message`: the line that names the exception; `is_report`: torchrun's own traceback, as a whole."""

    lines: int
    message: str = ""
    is_report: bool = False


def is_head(text: str) -> bool:
    """Whether a traceback begins with this line."""
    return MARK in text and _HEAD.match(text) is not None


def block_at(at: At, is_hooks: IsHooks = lambda _: False) -> Block | None:
    """The traceback that begins with line 0, with what it was caused by or led to; None: none begins there.

    Args:
        at: the text of a line from there on; None: there is none (yet), or another rank wrote it.
        is_hooks: whether PyTorch's hook for exceptions wrote a line: it marks every line of a traceback, so that a message may
            have any lines.
    """
    if not is_head(at(0) or ""):
        return None
    if is_hooks(0):
        return Block(_marked(at, is_hooks))
    n: int | None = 0
    block = Block(1)
    while n is not None and n < MOST_LINES:
        block = _one(at, n)
        n = _joined(at, block.lines)
    match = _LAUNCHER.match(block.message)
    if match is None:
        return block
    return _with_table(at, block) if match["name"] == "ChildFailedError" else block._replace(is_report=True)


def _marked(at: At, is_hooks: IsHooks) -> int:
    """How many lines the hook wrote, one after the other; it leaves blank lines without its mark."""
    n = 1
    while n < MOST_LINES:
        below = next((i for i in range(n, n + BLANK_LINES) if at(i) is None or (at(i) or "").strip()), n)
        if not is_hooks(below):
            return n
        n = below + 1
    return n


def _one(at: At, head: int) -> Block:
    """One traceback: its frames, the line that names the exception, what more there is of the message."""
    first, n, most = at(head) or "", head + 1, head + MOST_LINES
    while n < most and (text := at(n)) is not None and (not text or text[0].isspace() or text[0] in "│╰"):
        n += 1
    message = at(n)
    if message is None or is_head(message) or not first.startswith(("Traceback", "Original", "╭")):
        return Block(n)  # a stack ends with no message
    n += 1
    while n < most and (text := at(n)) is not None:
        if not (text[:1].isspace() and text.strip()) and not _MORE.match(text):
            break
        n += 1
    return Block(n, message)


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
    """With the table that torchrun prints below; without it the report is not whole yet."""
    n = block.lines
    if not _RULE.match(at(n) or ""):
        return block
    for i in range(n + 1, n + MOST_REPORT_LINES):
        if (text := at(i)) is None:
            return block._replace(lines=i)
        if _RULE.match(text):
            return block._replace(lines=i + 1, is_report=True)
    return block


def may_be_inside(text: str, before: str) -> bool:
    """Whether a line may stand within a block, judged by it and the one before alone."""
    if not text or text[0].isspace() or text[0] in "│╰" or before[:1].isspace() or before[:1] == "╰":
        return True
    within = (_JOINT, _ORIGINAL, _TABLE)
    return (
        is_head(before)
        or _MORE.match(text) is not None
        or any(each.match(line) is not None for each in within for line in (text, before))
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
