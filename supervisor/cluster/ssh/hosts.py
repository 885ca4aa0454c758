"""Parse the hosts for a run started over ssh, from ``--hosts a:4,b:4`` or from a file with one host per line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

import msgspec

from supervisor.cluster.scheduler import Place
from supervisor.run.index import state_home
from supervisor.run.jsonl import append_line, decoded
from supervisor.run.regular import read_regular

MOST_HOSTS: Final = 64
"""Each host takes up a connection and a process. Beyond a few dozen machines, use a scheduler (docs/scale.md)."""
_NAMED: Final = re.compile(r"(?P<target>(?:[\w.+-]+@)?(?:[\w.-]+|\[[0-9A-Fa-f:.%]+\]))(?::(?P<count>\d{1,4}))?", re.ASCII)  # fmt: skip
_VARIABLE: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.ASCII | re.DOTALL)


class BadHosts(Exception):  # noqa: N818 - a state of affairs, as JobError's
    """The run cannot start on these hosts. The message is a single line."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. `target` is ``user@name`` or an ssh alias. `processes` defaults to the job's setting; `env` is host-specific."""

    target: str
    processes: int | None = None
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """Return the target without the user name."""
        return self.target.rpartition("@")[2].strip("[]")


def hosts_in(text: str) -> tuple[Host, ...]:
    """Parse hosts given as ``a:4,me@b:4``.

    Raises:
        BadHosts: the text is malformed. The message is one line.
    """
    return _checked([_host(word, f"--hosts {text}") for word in text.split(",")], "--hosts")


def hosts_of_file(name: str, text: str) -> tuple[Host, ...]:
    """Parse a DeepSpeed or Open MPI hostfile, with ``NAME[:PROCESSES] [slots=N] [KEY=VALUE …]`` lines and ``#`` comments.

    Raises:
        BadHosts: the file is malformed. The message is one line with the file name and line number.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{name}:{number}"
        host, env = _host(words[0], where), []
        for word in words[1:]:
            match = _VARIABLE.fullmatch(word)
            if match is None:
                raise BadHosts(f"{where}: {word!r}: slots=N or KEY=VALUE is meant")
            if match[1] == "slots":
                host = _host(f"{words[0]}:{match[2]}", where)
            else:
                env.append((match[1], match[2]))
        found.append(Host(host.target, host.processes, tuple(env)))
    return _checked(found, name)


def variables_in(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse ``KEY=VALUE`` arguments. Raises BadHosts."""
    found = []
    for word in words:
        match = _VARIABLE.fullmatch(word)
        if match is None:
            raise BadHosts(f"--env {word.partition('=')[0]!r}: a name, = and a value are meant")
        found.append((match[1], match[2]))
    return tuple(found)


def processes_of(hosts: Sequence[Host]) -> int | None:
    """Return the number of processes per host, or None if no host specifies it.

    Raises:
        BadHosts: the numbers differ. All nodes of a run must have the same number.
    """
    counts = {host.processes for host in hosts}
    if len(counts) > 1:
        said = ", ".join(f"{host.target} {host.processes or 'says none'}" for host in hosts)
        raise BadHosts(f"processes a host: {said}: all nodes of a run have the same number")
    return counts.pop()


def place_of(hosts: Sequence[Host], rank: int, master: str) -> Place:
    """Return a host's place among the hosts, as a scheduler would. `master` is the first host's address."""
    names = (master, *(host.name for host in hosts[1:]))
    return Place(rank, len(hosts), names=names, started_on_each=True, why=f"host {rank} of {len(hosts)}")


def _host(word: str, where: str) -> Host:
    match = _NAMED.fullmatch(word.strip())
    if match is None or match["target"].startswith("-"):  # ssh would take it for an option
        raise BadHosts(f"{where}: {word!r} is no host: NAME, NAME:PROCESSES or USER@NAME:PROCESSES")
    if match["count"] is not None and not int(match["count"]):
        raise BadHosts(f"{where}: {word!r}: at least one process a host")
    return Host(match["target"], int(match["count"]) if match["count"] else None)


def _checked(hosts: Sequence[Host], where: str) -> tuple[Host, ...]:
    targets = [host.target for host in hosts]
    if twice := next((each for each in targets if targets.count(each) > 1), None):
        raise BadHosts(
            f"{where}: {twice} stands there twice: a host is one node, NAME:2 gives it two processes"
        )
    if not 2 <= len(hosts) <= MOST_HOSTS:
        hint = "on one machine it is `stoker run`" if len(hosts) < 2 else "use a scheduler (docs/scale.md)"
        raise BadHosts(f"{where}: {len(hosts)} hosts, 2 to {MOST_HOSTS} are meant: {hint}")
    return tuple(hosts)


# -- runs started over ssh from here, and their hosts: `stoker nodes status` needs no --hosts -------
# One line per run in ``$XDG_STATE_HOME/stoker/nodes.jsonl``. Variables are not kept. They may hold secrets.

FILE: Final = "nodes.jsonl"


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A run started over ssh. `hosts` are ssh targets in node order; `folder` is the working directory on the hosts."""

    run_dir: str
    folder: str
    hosts: tuple[str, ...]
    stoker: tuple[str, ...]
    ssh_config: str | None = None
    t: float

    @property
    def name(self) -> str:
        """Return the run folder's name."""
        return PurePath(self.run_dir).name


def remember(started: Started, env: Mapping[str, str]) -> None:
    """Record the launch so that `remembered` can find it."""
    append_line(state_home(env) / FILE, started, follows=True)


def remembered(named: str | None, env: Mapping[str, str]) -> Started | None:
    """Return the latest launch, if any, whose run matches `named` (full or partial folder name, or path; None matches any)."""
    try:
        known = list(decoded(msgspec.json.Decoder(Started), read_regular(state_home(env) / FILE)))
    except OSError:
        return None
    fits = (each for each in reversed(known) if named is None or named == each.run_dir or named in each.name)
    return next(fits, None)
