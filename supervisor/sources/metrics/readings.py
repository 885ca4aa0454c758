"""What a line says: its readings before and after choosing."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.sources.metrics.values import Conversion

RANK = "rank"
# The rank of what a bar counts: any name that says so is believed before.
BAR_RANK = 2


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
    `once`: the same with other digits may say something else, so nothing is to be learnt of it.
    """

    readings: tuple[Reading, ...]
    pair: tuple[Reading, Reading] | None = None
    heading: bool = False
    settings: bool = False
    once: bool = False


NOTHING = Parsed(())


def shifted(parsed: Parsed, by: int) -> Parsed:
    """What was found in a part of a line that begins `by` characters behind the line's beginning."""
    if not by:
        return parsed

    def moved(reading: Reading) -> Reading:
        return reading._replace(start=reading.start + by, end=reading.end + by)

    pair = (moved(parsed.pair[0]), moved(parsed.pair[1])) if parsed.pair is not None else None
    return parsed._replace(readings=tuple(map(moved, parsed.readings)), pair=pair)


class Found(NamedTuple):
    """All readings of a line before any choice between them, and how many names of settings it holds."""

    readings: list[Reading]
    settings: int
