"""What one line reports: an object that holds its numbers, and makes dictionaries of them for who asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from operator import mul
from types import MappingProxyType
from typing import Any, cast

import msgspec
from msgspec.structs import astuple

from supervisor.sources.metrics.names import LOSS, RUN_TIME, STEP

_NONE: Mapping[str, float] = MappingProxyType({})


class MetricSample(msgspec.Struct, frozen=True, gc=False):
    """What one line reports.

    Its types are `FoundSample`, and those that `sample_type` makes. (Structs, not tuples: made in a third of the time.)
    """

    @property
    def values(self) -> dict[str, float]:
        """Canonical names (`names.CANONICAL`) to numbers in base units: seconds, bytes, ratios.

        `step` and `total_steps` are ints. NaN and infinities are kept.
        """
        raise NotImplementedError

    @property
    def other(self) -> Mapping[str, float]:
        """Names of the log's own to values as printed."""
        raise NotImplementedError

    @property
    def rank(self) -> int | None:
        """The rank, only where the line itself says it."""
        raise NotImplementedError

    @property
    def step(self) -> int | None:
        """The training step, if the line says it."""
        step = self.values.get(STEP)
        return int(step) if step is not None else None

    @property
    def loss(self) -> float | None:
        """The training loss, if the line says it."""
        return self.values.get(LOSS)

    @property
    def sums_up(self) -> bool:
        """Whether the line sums up the whole run: its loss is a mean over all steps, not that of the last."""
        return RUN_TIME in self.other


class FoundSample(MetricSample, frozen=True, gc=False):
    """A sample whose values were gathered one by one."""

    values: dict[str, float]
    other: Mapping[str, float]
    rank: int | None = None


@lru_cache(maxsize=1024)
def sample_type(
    fields: tuple[str, ...], own: tuple[str, ...] = (), *, ranked: bool = False
) -> type[MetricSample]:
    """A type for the samples of one shape, whose names are known: a sample holds numbers alone.

    That costs 0.05 µs a sample; two dictionaries cost 0.1 more, and who charts a loss asks for neither.

    Args:
        fields: the canonical names, which are its first arguments.
        own: the log's own names, which are the next.
        ranked: whether the rank is the last.
    """
    return define(
        [*fields, *(f"own_{place}" for place in range(len(own))), *(["rank"] if ranked else [])],
        fields,
        own,
    )


def define(
    members: list[Any],
    fields: tuple[str, ...],
    own: tuple[str, ...],
    rename: Mapping[str, str] | None = None,
    scales: tuple[float, ...] = (),
) -> type[MetricSample]:
    """A type of samples with these members: as many as `fields`, then as many as `own`, then perhaps `rank`.

    Args:
        members: their names, or names with types, as `msgspec.defstruct` takes them.
        fields: the canonical names.
        own: the log's own names.
        rename: what the members are called where the struct is decoded.
        scales: by what its canonical values are to be multiplied, where they are held in other units; 1 for step and loss.
    """

    def values(sample: MetricSample) -> dict[str, float]:
        return dict(
            zip(fields, map(mul, astuple(sample), scales) if scales else astuple(sample), strict=False)
        )

    def other(sample: MetricSample) -> Mapping[str, float]:
        return dict(zip(own, astuple(sample)[len(fields) :], strict=False))

    namespace: dict[str, Any] = {
        "values": property(values),
        "other": property(other) if own else _NONE,
        "sums_up": RUN_TIME in own,
    }
    named = {member if isinstance(member, str) else member[0] for member in members}
    for absent in {STEP, LOSS, "rank"} - named:
        namespace[absent] = None
    made = msgspec.defstruct(
        "LineSample",
        members,
        bases=(MetricSample,),
        namespace=namespace,
        rename=dict(rename) if rename is not None else None,
        frozen=True,
        gc=False,
    )
    return cast("type[MetricSample]", made)
