"""Find a run's logs, the rank that wrote a line, and a line's severity (pure: only names and text).

A line is addressed by its file and its byte offset. The files that torchrun wrote remain the record.
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
    """How to show a line. The tone is a guess from its words, never a verdict."""

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
    """One log of a run: its writer and its path. `who` is empty if one file contains every rank.

    `node` is the log's node, if the run has several.
    """

    attempt: int
    who: str
    stream: str
    path: Path
    node: int | None = None

    @property
    def is_mixed(self) -> bool:
        """Whether the lines may be from several ranks, marked by their own prefixes."""
        return self.who in {AGENT, ""}


class NodeLogs(NamedTuple):
    """One node of a multi-node run: the folder that lists its logs, and their display names."""

    number: int
    paths: NodePaths
    state: RunState


def logs_of(
    state: RunState, node: NodePaths, attempts: Sequence[AttemptState], number: int | None = None
) -> Iterator[LogRef]:
    """Yield the logs of some attempts, launcher first, each file once per attempt. `number` is the node's, if several."""
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
    """Return the writer of a line, and the line without its rank prefix. `who` writes the file.

    In a log of several ranks, a rank mark of the script's own logger, after time and level, counts too and stays.
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
    """Return the writer of a file. An observed log may contain every rank, marked by its own prefix."""
    return "" if state.mode == "observed" and rank.rank is None else rank_label(rank)


def tone_of(text: str) -> Tone:
    """Return how to show a line, from the words of its first 400 characters."""
    head = text[:400]
    if NOTABLE.search(head) is None:
        return Tone.PLAIN
    if _BAD.search(head):
        return Tone.BAD
    return Tone.WARN if _WARN.search(head) else Tone.PLAIN
