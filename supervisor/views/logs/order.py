"""Lines of several logs in the order in which they were most likely written (pure).

Most lines carry no time. What is known is when a file was last written, what torchrun's own lines say, and what must
come first: torchrun says that a rank has failed after that rank's last line, and ends with its own traceback after all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from supervisor.text.stamps import anchor_of
from supervisor.views.logs.blocks import MARK, block_at, is_head, texts_from
from supervisor.views.logs.line_time import anchor_shift

if TYPE_CHECKING:
    from supervisor.views.logs.newest import LogLine

# Beyond what floats tell apart at today's wall time, below any clock of a log.
AFTER_S = 1e-4
REACTION = re.compile(r"closing signal|death signal|failed \(exitcode")
FAILED = re.compile(r"failed \(exitcode: -?\d+\) local_rank: (\d+)")


class Part(NamedTuple):
    """Lines of one file that were read together.

    Attributes:
        lines: at least one.
        last_t: when the file was last written.
        launcher: whether torchrun itself writes it.
        local_rank: whose file it is otherwise, as torchrun names its folder.
        is_copy: the file's own time is later than its attempt's end, which `last_t` is then.
    """

    lines: list[LogLine]
    last_t: float
    launcher: bool = False
    local_rank: str = ""
    is_copy: bool = False


def interleave(parts: Sequence[Part], start_t: float) -> list[LogLine]:
    """Lines of several files as one list, in the order in which they were most likely written.

    The newest line of a file was written when the file was; those before it are taken to be as far apart as the
    lines of the busiest file. An indented line and the one before it stay with the line that they lead to, so that a
    traceback is not torn apart.
    """
    if not parts:
        return []
    told_t = min((_reaction_t(part, start_t) for part in parts if part.launcher), default=math.inf)
    parts = [
        p._replace(last_t=min(p.last_t, told_t - AFTER_S)) if p.is_copy and not p.launcher else p
        for p in parts
    ]
    busiest = max(parts, key=lambda part: len(part.lines))
    gap_s = max((busiest.last_t - start_t) / len(busiest.lines), 0.0)

    def rank_t(local_rank: str | None) -> float:
        """When a rank (None: any) wrote last, just after."""
        theirs = [p.last_t for p in parts if not p.launcher and local_rank in {None, p.local_rank}]
        return max(theirs, default=0.0) + AFTER_S

    timed: list[tuple[float, int, int, LogLine]] = []
    for order, part in enumerate(parts):
        times = _spread(part, gap_s)
        if part.launcher:
            texts = [line.text for line in part.lines]
            times = _stamped(texts, at_start(texts, times, start_t), start_t, part.last_t)
            times = after_ranks(texts, times, part.last_t, rank_t)
        timed += [
            (t, order, index, line) for index, (t, line) in enumerate(zip(times, part.lines, strict=True))
        ]
    timed.sort()  # no two have the same file and index, so lines themselves are never compared
    return [line for *_, line in timed]


def _reaction_t(part: Part, start_t: float) -> float:
    """When torchrun first said that ranks end, by its own clock."""
    texts = [line.text for line in part.lines]
    times = _stamped(texts, [math.inf] * len(texts), start_t, part.last_t)
    return next((t for text, t in zip(texts, times, strict=True) if REACTION.search(text)), math.inf)


def _spread(part: Part, gap_s: float) -> list[float]:
    times: list[float] = []
    t = part.last_t
    newest = len(part.lines) - 1
    is_led = True  # the newest line leads nowhere yet: it keeps the file's own time
    for index in range(newest, -1, -1):
        is_indented = part.lines[index].text[:1].isspace()
        if not (is_led or is_indented):
            t = part.last_t - (newest - index) * gap_s
        times.append(t)
        is_led = is_indented
    times.reverse()
    return times


def _stamped(texts: Sequence[str], times: list[float], start_t: float, last_t: float) -> list[float]:
    """torchrun's own lines begin with a time; those without go with the one before."""
    anchors = [anchor_of(text, last_t) for text in texts]
    known = [t for t in anchors if t is not None]
    shift = anchor_shift(known, start_t, last_t)
    if shift is None:
        return times
    carried: list[float] = []
    now: float | None = None
    for anchor, t in zip(anchors, times, strict=True):
        now = anchor + shift if anchor is not None else now
        carried.append(now if now is not None else min(t, known[0] + shift))
    return carried


def at_start(texts: Sequence[str], times: Sequence[float], start_t: float) -> list[float]:
    """What the launcher says before its ranks end it says as it starts them, where its lines carry no time.

    Args:
        texts: its lines.
        times: when they were written, as far as anything but their stamps tells.
        start_t: when the attempt began, wall seconds; 0: unknown.
    """
    ends = (n for n, text in enumerate(texts) if REACTION.search(text) or (MARK in text and is_head(text)))
    first = next(ends, 0) if start_t else 0
    return [*(min(start_t, t) for t in times[:first]), *times[first:]]


def after_ranks(
    texts: Sequence[str],
    times: Sequence[float],
    written_t: float,
    rank_t: Callable[[str | None], float],
) -> list[float]:
    """The launcher's lines no earlier than what they report.

    Args:
        texts: its lines.
        times: when they were written, as far as they tell.
        written_t: when its log was last written.
        rank_t: when a local rank (None: any) wrote its last line.
    """
    after = list(times)
    newest = 0.0
    n = 0
    while n < len(texts):
        count = 1
        block = block_at(texts_from(texts, n)) if MARK in texts[n] else None
        if block is not None and (block.is_report or not block.ended):
            count = block.lines
            newest = max(newest, written_t, rank_t(None))
        elif (failed := FAILED.search(texts[n])) is not None:
            newest = max(newest, after[n], rank_t(failed[1]))
        for i in range(n, min(n + count, len(texts))):
            after[i] = newest = max(after[i], newest)
        n += count
    return after
