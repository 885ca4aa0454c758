"""What a line says: readings before and after choosing, and the sample that is handed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from supervisor.sources.metrics.names import LOSS, RUN_TIME, STEP
from supervisor.sources.metrics.values import Conversion

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


class MetricSample(msgspec.Struct, frozen=True, gc=False):
    """What one line reports.

    `values`: canonical names (`names.CANONICAL`) to numbers in base units: seconds, bytes, ratios; `step`
    and `total_steps` are ints. NaN and infinities are kept. `other`: names of the log's own, values as
    printed. `rank`: only where the line itself says it. (A struct, not a tuple: it is made in a third of the time.)
    """

    values: dict[str, float]
    other: Mapping[str, float]
    rank: int | None = None

    @property
    def step(self) -> int | None:
        """The training step, if the line says it."""
        step = self.values.get(STEP)
        return int(step) if step is not None else None

    @property
    def sums_up(self) -> bool:
        """Whether the line sums up the whole run: its loss is a mean over all steps, not that of the last."""
        return RUN_TIME in self.other

    @property
    def loss(self) -> float | None:
        """The training loss, if the line says it."""
        return self.values.get(LOSS)
