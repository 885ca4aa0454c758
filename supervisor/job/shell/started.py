"""What a shell script starts, as it is collected while its commands are followed."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from supervisor.job.shell.expand import MARKS

Read = Callable[[str], str | None]


class NotKnownError(Exception):
    """Why it is not known what a script starts: one clause that begins with the script and the line."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class Started:
    """A command that a script starts.

    `words` may hold unknown parts (`expand.shown`). `env`: what the script sets for it. `background`: the script does not wait for it.
    """

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    cwd: str
    file: str
    line: int
    background: bool = False

    @property
    def at(self) -> str:
        """``train.sh:12``."""
        return f"{self.file}:{self.line}"

    @property
    def same(self) -> tuple[object, ...]:
        """What makes two of them one command."""
        return self.words, self.env, self.cwd, self.background


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """What a script would do: the one training, the other commands, and variables that whoever starts it may set.

    `touched`: files that the script writes, or names to other commands, which may change them.
    """

    training: Started
    others: tuple[tuple[str, ...], ...]
    settable: tuple[str, ...]
    touched: frozenset[str] = frozenset()


@dataclass
class Seen:
    """What is collected over all shells of one start."""

    read: Read
    base: str
    given: Mapping[str, str]
    started: list[Started] = field(default_factory=list)
    aside: list[Started] = field(default_factory=list)
    others: list[tuple[str, ...]] = field(default_factory=list)
    through: list[str] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    ends: list[str] = field(default_factory=list)
    commands: int = 0

    def text(self, folder: str | None, name: str) -> str | None:
        """A file's text, by its name as a command in `folder` uses it."""
        if folder is None or MARKS & set(name):
            return None
        path = posixpath.normpath(posixpath.join(folder, name))
        below = self.base.rstrip("/") + "/"
        return self.read(path.removeprefix(below))


def one_training(seen: Seen, name: str) -> Started:
    """The training among all that is started."""
    starts = seen.started or seen.aside
    if not starts and seen.through:
        raise NotKnownError(seen.through[0])
    if not starts:
        raise NotKnownError(f"{name} starts no training that is recognised")
    if len(starts) > 1:
        what = "it more than once" if len({start.same for start in starts}) == 1 else "several commands"
        lines = ", ".join(dict.fromkeys(str(start.line) for start in starts[:6]))
        raise NotKnownError(f"{name} starts {what} (lines {lines})")
    if starts[0].background:
        raise NotKnownError(f"{starts[0].at} starts it in the background and does not wait for it")
    return starts[0]
