"""The steps taken against a full host memory: what of the DataLoader is lowered, in which order, before the batch is."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, assert_never

from supervisor.job.spec import LoaderKnobs
from supervisor.run.records import SpecChange


class LoaderStep(StrEnum):
    """One thing that costs host memory or /dev/shm."""

    WORKERS = "workers"  # halved
    PREFETCH = "prefetch"  # one batch ahead
    PINNED = "pinned"  # no page-locked copies
    SHARING = "sharing"  # tensors through files rather than descriptors


# A kill by the kernel, the control group or SLURM: each step once, then the micro-batch.
KILLED: Final = (LoaderStep.WORKERS, LoaderStep.PREFETCH, LoaderStep.PINNED)
# /dev/shm is full. Workers stand twice: halving is repeated, since all that lies there is theirs.
SHARED: Final = (LoaderStep.SHARING, LoaderStep.WORKERS, LoaderStep.PREFETCH, LoaderStep.WORKERS)


def next_step(
    loader: LoaderKnobs, changes: Iterable[SpecChange], steps: tuple[LoaderStep, ...]
) -> tuple[SpecChange, str] | None:
    """The change of the first step that was not taken yet and can be, with its line; None when none is left."""
    past = [dict(change.set_args) for change in changes]
    taken: dict[LoaderStep, int] = {}
    for kind in steps:
        knob = _knob(loader, kind)
        if knob is None:
            continue
        name, present = knob
        values = [given[name] for given in past if name in given]
        used = taken[kind] = taken.get(kind, 0) + 1
        if len(values) >= used:
            continue
        step = _lowered(kind, name, values[-1] if values else present)
        if step is not None:
            return step
    return None


def _knob(loader: LoaderKnobs, kind: LoaderStep) -> tuple[str, str] | None:
    found: tuple[str, int] | tuple[str, bool] | tuple[str, str] | None
    match kind:
        case LoaderStep.WORKERS:
            found = loader.workers
        case LoaderStep.PREFETCH:
            found = loader.prefetch
        case LoaderStep.PINNED:
            found = loader.pinned
        case LoaderStep.SHARING:
            found = loader.sharing
        case _:
            assert_never(kind)
    return None if found is None else (found[0], str(found[1]).lower())


def _lowered(kind: LoaderStep, name: str, present: str) -> tuple[SpecChange, str] | None:
    match kind:
        case LoaderStep.WORKERS if present.isdigit() and int(present) > 0:
            value, what = str(int(present) // 2), f"DataLoader workers {present} → {int(present) // 2}"
        case LoaderStep.PREFETCH if present.isdigit() and int(present) > 1:
            value, what = "1", f"prefetch {present} → 1"
        case LoaderStep.PINNED if present == "true":
            value, what = "false", "pinned memory off"
        case LoaderStep.SHARING if present != "file_system":
            value, what = "file_system", "tensors shared through files (file_system)"
        case _:
            return None
    return SpecChange(set_args=((name, value),)), what
