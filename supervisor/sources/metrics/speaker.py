"""Who said a line, and where what was said begins."""

from __future__ import annotations

import re

from supervisor.text.prefixes import split_prefix

_RAW_RANK = re.compile(
    r"\s*\[(?:RANK|Rank|rank)[ :=]{1,2}(\d{1,6})\]:?\s|\s*\[[\w.-]{1,64}:(\d{1,6})/\d{1,6}\]\s|\s*\((\d{1,6})/\d{1,6}\)\s(?=\S)(?=.*\b(?:[Ee]poch|[Ss]tep|[Ii]ter))"
)

# "[HUGECTR][03:13:26][INFO][RANK0]: …": a rank behind other tags.
_RANK_BEHIND = re.compile(
    r"(?:\[[^\[\]]{1,40}\]\s{0,2}|(?:DEBUG|INFO|WARNING|ERROR)\s{1,8}|[-|:]\s)+\s*\[RANK[ :=]?(\d{1,6})\]:?\s"
)
# "2020-11-08 20:32:35 [1,0]<stderr>:": MPI's tag behind a time.
_MPI_BEHIND = re.compile(r"[-\d]{10}[T ][\d:.,]{8,15}\s?\[\d+,(\d{1,6})\]<std(?:out|err)>:")
_NUMBERED = re.compile(r"\s{0,4}\d{1,5}: $")
_DECIMAL = re.compile(r"-?(?:\d+\.\d|\.\d|\d+\.?$)|-\d")


def who(text: str) -> tuple[int | None, str, tuple[int, int] | None]:
    """The rank that the line's prefix names, what stands behind the prefix, and where the rank's digits are."""
    origin, body = split_prefix(text)
    rank = origin.rank if origin.rank is not None else origin.local_rank
    place = len(text) - len(body)
    if (
        origin.task is not None
        and _DECIMAL.match(body)
        and (numbered := _NUMBERED.search(text[:place])) is not None
    ):
        # "1: 803.28, …": a step, not a task
        place = numbered.start()
        body = text[place:]
    elif rank is None and origin.task is not None:
        rank = origin.task
    runs = [run.span() for run in re.finditer(r"\d+", text[:place]) if int(run.group()) == rank]
    where = runs[0] if len(runs) == 1 else None
    if (
        match := _RAW_RANK.match(body)
        or ("[RANK" in body[:80] and _RANK_BEHIND.match(body))
        or ("]<std" in body[:48] and _MPI_BEHIND.match(body))
        or None
    ):
        body = body[match.end() :]
        if rank is None:
            group = match.lastindex or 1
            rank = int(match.group(group))
            where = (place + match.start(group), place + match.end(group))
    return rank, body, where
