"""What an earlier keeper saw of a run's pace: lived through again, once, by the keeper that adopts it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import chain

from supervisor.job.spec import HangSettings
from supervisor.policy.health.pace import Paces, Stage
from supervisor.policy.health.stall import StallWatch
from supervisor.run import events as ev
from supervisor.run.journal import facts_in
from supervisor.run.paths import AttemptPaths, NodePaths
from supervisor.run.series import METRICS, Sample, SeriesReader

TAIL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Past:
    """Where the attempt stood. `last_t`: wall time of the last step or change of phase. `written_t`: of the last change of any of its logs."""

    last_t: float | None = None
    last_step: float | None = None
    written_t: float | None = None


def relive(
    node: NodePaths, attempt: int, paces: Paces, settings: HangSettings, mono: Callable[[float], float]
) -> tuple[StallWatch, Past]:
    """The watch over this attempt as its journal and its newest samples leave it; `paces` learn from all attempts. `mono`: a wall time by the keeper's monotonic clock."""
    watch = StallWatch(paces, settings, started=mono(float("inf")))
    last_t: float | None = None
    steps: list[float] = []
    flagged: Stage | None = None
    moments: Iterable[ev.Event | Sample] = merge(
        facts_in(node.journal), _steps(node, attempt), key=lambda one: one.t
    )
    for event in moments:
        at = mono(event.t)
        match event:
            case ev.AttemptStarted():
                watch, last_t = StallWatch(paces, settings, started=at), None
            case ev.PhaseChanged():
                watch.enter(event.phase, at)
                last_t = event.t
            case ev.Progress() if event.step is not None and not watch.stepped:
                watch.step(at)
            case ev.StallFlagged():
                flagged = next((stage for stage in Stage if stage.value == event.stage), None)
            case ev.StallEnded() if flagged is not None:
                paces.forgive(flagged, event.stalled_s)
                paces.returned(event.stalled_s)
                flagged = None
            case Sample():
                if not steps:  # those before it are not read: it ends no gap
                    watch.resume(None, at)
                watch.step(at)
                steps.append(event.v["step"] or 0.0)
                last_t = event.t
            case _:
                pass
    return watch, Past(last_t, max(steps, default=None), _last_change(node.attempt(attempt)))


def _last_change(paths: AttemptPaths) -> float | None:
    found = []
    for log in (*paths.logs(), *paths.telemetry.glob("rank*.jsonl")):
        with contextlib.suppress(OSError):
            found.append(log.stat().st_mtime)
    return max(found, default=None)


def _steps(node: NodePaths, attempt: int) -> Iterator[Sample]:
    reader = SeriesReader(node.series, METRICS)
    reader.seek_tail(TAIL_BYTES)
    samples = chain.from_iterable(iter(reader.read, []))
    return (sample for sample in samples if sample.a == attempt and sample.v.get("step") is not None)
