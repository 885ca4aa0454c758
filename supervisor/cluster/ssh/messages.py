"""What the two sides of ``stoker nodes`` say to each other, each a line of JSON: `Request` on stdin there, an answer on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

MOST_NAMED: Final = 3


class Do(StrEnum):
    """What is asked of stoker on a host."""

    FACTS = "facts"  # versions and code; with a token, a mark that other hosts are to see
    SEES = "sees"  # whether the mark is there
    UNMARK = "unmark"
    VERB = "verb"  # `words` as if typed there: `stoker run --detach …`, `stoker stop …`
    STATUS = "status"
    END = "end"  # SIGTERM to the keeper of this node alone
    LOGS = "logs"


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request.

    `folder`: where to do it; `env`: added before anything is looked at; `words`: of a verb, or what follows ``stoker run``; `token`: of one start:
    what it marks, starts or ends is its own.
    """

    do: Do
    folder: str
    run_dir: str = ""
    node: int = 0
    words: tuple[str, ...] = ()
    env: dict[str, str] = {}
    token: str = ""
    lines: int = 0
    follow: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What must be alike on all hosts, or is worth telling. `code`: file to the hash of what is in it. `marked`: the folder with the mark."""

    host: str
    stoker: str
    python: str
    torch: str = ""
    nccl: str = ""
    driver: str = ""
    cuda: str = ""
    interpreter: str = ""
    code: dict[str, str] = {}
    marked: str = ""
    error: str = ""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the run, as its host sees it. `beats`: whether its heartbeat moved while it was listened to."""

    host: str
    found: bool = False
    keeper: bool = False
    beats: bool = False
    state: str = ""
    attempt: int = 0
    step: int | None = None
    steps: int | None = None
    exit_code: int | None = None
    over: bool = False


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Yes or no, and why; of a verb its exit code."""

    ok: bool
    text: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which hosts differ. `grave`: a start is refused for it."""

    what: str
    text: str
    grave: bool


_COMPARED: Final[Mapping[str, bool]] = {
    "stoker": True,
    "python": True,
    "torch": True,
    "cuda": False,
    "nccl": False,
    "driver": False,
}


def differences(facts: Sequence[tuple[str, Facts]]) -> list[Difference]:
    """In what hosts differ; `facts` by host, the first is what the others are held against."""
    found = []
    for what, grave in _COMPARED.items():
        values = {host: str(getattr(each, what)) or "none" for host, each in facts}
        if len(set(values.values())) > 1:
            text = ", ".join(f"{host} {value}" for host, value in values.items())
            found.append(Difference(what, text, grave))
    if not facts:
        return found
    first, ours = facts[0][0], facts[0][1].code
    for host, each in facts[1:]:
        names = sorted(
            name for name in ours.keys() | each.code.keys() if ours.get(name) != each.code.get(name)
        )
        if names:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            said = ", ".join(_how(name, ours, each.code, first, host) for name in names[:MOST_NAMED])
            found.append(Difference("code", said + more, grave=True))
    return found


def _how(name: str, ours: Mapping[str, str], theirs: Mapping[str, str], first: str, host: str) -> str:
    if name in ours and name in theirs:
        return f"{name} is another on {host} than on {first}"
    return f"{name} is missing on {first if name in theirs else host}"
