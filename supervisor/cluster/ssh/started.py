"""Which runs were started over ssh from this machine, and where: so that ``stoker nodes status`` needs no hosts named again.

A line each in ``$XDG_STATE_HOME/stoker/nodes.jsonl``. Variables are not kept: they may hold secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

import msgspec

from supervisor.run.index import state_home
from supervisor.run.jsonl import append_line, decoded
from supervisor.run.regular import read_regular

FILE: Final = "nodes.jsonl"


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `hosts`: as ssh takes them, in the order of their nodes; `folder`: where it was started there."""

    run_dir: str
    folder: str
    hosts: tuple[str, ...]
    stoker: tuple[str, ...]
    ssh_config: str | None = None
    t: float

    @property
    def name(self) -> str:
        """The run's folder."""
        return PurePath(self.run_dir).name


def remember(started: Started, env: Mapping[str, str]) -> None:
    """Keep it."""
    append_line(state_home(env) / FILE, started)


def remembered(named: str | None, env: Mapping[str, str]) -> Started | None:
    """The newest start, of the run that is named (its folder's name, a part of it, or its path) or of any; None: there is none."""
    try:
        known = list(decoded(msgspec.json.Decoder(Started), read_regular(state_home(env) / FILE)))
    except OSError:
        return None
    fits = (each for each in reversed(known) if named is None or named == each.run_dir or named in each.name)
    return next(fits, None)
