"""What an observer watches, as data; kept small, so that a screen can name it without importing what reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.sources.processes import ProcessId
from supervisor.text.prefixes import NOWHERE, Origin

PIPE_NAME = "stdin.log"


@dataclass(frozen=True, slots=True)
class ObservedLog:
    """One log to watch: its absolute path, what to call it, whose it is.

    `packed`: gzip, or another encoding than UTF-8; it is read from a plain copy in the run directory.
    """

    path: str
    name: str
    origin: Origin = NOWHERE
    packed: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """What is observed.

    `pipe` is a file descriptor to read until its end. `processes` are the ranks by rank (or one process
    under 0); the run is over when all of them are gone. `ended`: nobody writes these logs any more. `unseen`: what of
    it cannot be seen from here, for a person.
    """

    name: str
    source: str
    logs: Sequence[ObservedLog] = ()
    pipe: int | None = None
    processes: tuple[tuple[int, ProcessId], ...] = ()
    ended: bool = False
    unseen: str = ""
