"""Messages exchanged by ``stoker nodes``, each one line of JSON: a `Request` on remote stdin and an answer on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class Do(StrEnum):
    """Requests that stoker on a host understands."""

    FACTS = "facts"
    SEES = "sees"  # whether the host sees the run that node 0 created
    VERB = "verb"  # `words` as if typed on the host: `stoker run --detach …`, `stoker stop …`
    STATUS = "status"
    END = "end"  # SIGTERM to the keeper of this node only
    LOGS = "logs"


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to stoker on a host.

    `folder` is the working directory, `env` holds environment variables to set beforehand, and `words` are the
    arguments to a verb or to ``stoker run``. `token` identifies a launch; a stop request with one affects only its keeper.
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
    """Values that must match across hosts. `code` hashes the files on the command line; `error` says why the job cannot start."""

    stoker: str
    python: str = ""
    torch: str = ""
    code: dict[str, str] = {}
    error: str = ""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node of the run, as seen from its host."""

    found: bool = False
    keeper: bool = False
    state: str = ""
    attempt: int = 0
    step: int | None = None
    steps: int | None = None
    exit_code: int | None = None
    over: bool = False


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Yes or no with the reason, plus the exit code if a verb was run."""

    ok: bool
    text: str = ""
    code: int = 0


def differences(facts: Sequence[tuple[str, Facts]]) -> list[str]:
    """Return the differences between hosts, one line each. `facts` has one entry per host; the first is the reference."""
    found = []
    for what in ("stoker", "python", "torch"):
        values = [(host, getattr(each, what) or "none") for host, each in facts]
        if len({value for _, value in values}) > 1:
            found.append(f"{what}: {', '.join(f'{host} {value}' for host, value in values)}")
    first, ours = facts[0]
    for host, each in facts[1:]:
        for name in sorted(ours.code.keys() | each.code.keys()):
            if name not in each.code or name not in ours.code:
                found.append(f"code: {name} is missing on {first if name in each.code else host}")
            elif ours.code[name] != each.code[name]:
                found.append(f"code: {name} is another on {host} than on {first}")
    return found
