"""Finds a run's logs, the rank that wrote a line, and the line's severity, from names and text alone. Pure.

A line is identified by its file and byte offset. The files written by torchrun remain the source of truth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from supervisor.run.paths import NodePaths
from supervisor.run.state import AttemptState, RankState, RunState
from supervisor.text.prefixes import rank_mark, split_prefix

AGENT = "agent"


class Tone(Enum):
    """How a line is highlighted. This is a guess based on its wording, never a verdict."""

    PLAIN = "plain"
    WARN = "warn"
    BAD = "bad"


_BAD = re.compile(
    r"Traceback \(most|\bFATAL\b|\bCRITICAL\b|\b\w*(?:Error|Exception)\b(?::|$)|out of memory|\[ERROR\]|\bERROR\b"
)
_WARN = re.compile(r"\bWARN(?:ING)?\b|\w*Warning\b:|\bwarning:")
# Any line with a severity contains one of these. Most lines do not, and this check is 15 to 25 times faster.
NOTABLE = re.compile(r"rror|RROR|xception|arning|WARN|Traceback|FATAL|CRITICAL|out of memory")


class LogRef(NamedTuple):
    """A run's log file: its writer and its path. `who` is empty if the file contains output from every rank.

    `node` is set only in a multi-node run.
    """

    attempt: int
    who: str
    stream: str
    path: Path
    node: int | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether the file may contain lines from several ranks, each marked with a prefix."""
        return self.who in {AGENT, ""}


class NodeLogs(NamedTuple):
    """A node of a multi-node run: the directory that lists its logs, and the state that names their ranks."""

    number: int
    paths: NodePaths
    state: RunState


def logs_of(
    state: RunState, node: NodePaths, attempts: Sequence[AttemptState], number: int | None = None
) -> Iterator[LogRef]:
    """Yield these attempts' logs, launcher first, each file once per attempt. `number` is the node number in multi-node runs."""
    for attempt in attempts:
        paths = node.attempt(attempt.number)
        yield LogRef(attempt.number, AGENT, AGENT, paths.agent_log, number)
        seen: set[str] = set()
        for rank in attempt.ranks.values():
            for stream, name in (("stdout", rank.stdout), ("stderr", rank.stderr)):
                if name and name not in seen:
                    seen.add(name)
                    yield LogRef(attempt.number, _label(rank, state), stream, paths.root / name, number)


def split_rank(text: str, who: str) -> tuple[str, str]:
    """Return a line's writer and the line without its rank prefix. `who` is the file's writer.

    In a shared log, a rank that the script's own logger prints after the time and level also counts, but stays in the line.
    """
    if text[:1] not in {"[", "("} and who not in {AGENT, ""}:
        return who, text
    origin, rest = split_prefix(text)
    rank = origin.rank if origin.rank is not None else origin.local_rank
    if rank is not None:
        return str(rank), rest
    marked = rank_mark(text) if who in {AGENT, ""} else None
    return (str(marked) if marked is not None else who), text


def rank_label(rank: RankState) -> str:
    """Return the global rank, or the local rank if the global rank is unknown."""
    return str(rank.rank if rank.rank is not None else rank.local_rank)


def _label(rank: RankState, state: RunState) -> str:
    """Return the name of a file's writer, or "" for an observed log, which may contain prefixed lines from any rank."""
    return "" if state.mode == "observed" and rank.rank is None else rank_label(rank)


def tone_of(text: str) -> Tone:
    """Return how to highlight a line, judging by its first 400 characters."""
    head = text[:400]
    if NOTABLE.search(head) is None:
        return Tone.PLAIN
    if _BAD.search(head):
        return Tone.BAD
    return Tone.WARN if _WARN.search(head) else Tone.PLAIN
