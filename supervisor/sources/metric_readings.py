"""What a grammar finds in a line, before and after choosing."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.sources.metric_values import Conversion

RANK = "rank"


class Reading(NamedTuple):
    """One value of a line: canonical field (or "" with a name of its own), its place, how to convert it."""

    field: str
    name: str
    rank: int
    start: int
    end: int
    conversion: Conversion
    weak: bool = False


class Parsed(NamedTuple):
    """What a line says. `pair_total`: place of a total that counts only if its pair is the named step (or one off).

    `heading`: the line names a step or epoch and nothing else; the lines below may belong to it.
    """

    readings: tuple[Reading, ...]
    pair: tuple[Reading, Reading] | None = None
    heading: bool = False
    settings: bool = False


NOTHING = Parsed(())


class Found(NamedTuple):
    """All readings of a line before any choice between them, and how many names of settings it holds."""

    readings: list[Reading]
    settings: int
