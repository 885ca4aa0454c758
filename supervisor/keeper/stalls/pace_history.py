"""What an earlier keeper saw of an attempt's pace: read once, by the keeper that adopts it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.policy.health.pace import Stage
from supervisor.run import events as ev
from supervisor.run.journal import facts_in
from supervisor.run.paths import AttemptPaths, NodePaths
from supervisor.run.series import METRICS, SeriesReader

TAIL_BYTES = 1 << 20
_STAGES = {
    ev.Phase.COMPILING: Stage.COMPILE,
    ev.Phase.EVALUATING: Stage.EVALUATION,
    ev.Phase.CHECKPOINTING: Stage.CHECKPOINT,
}


@dataclass(frozen=True, slots=True)
class Past:
    """Durations by stage, and where the attempt stood. `last_t`: wall time of the last step or change of phase.

    `silences`: those that were flagged and ended by themselves, with their stage. `longest_s`: the longest silence after a first
    step that the run came back from. `written_t`: wall time of the last change of any of the attempt's logs.
    """

    durations: Mapping[Stage, tuple[float, ...]] = field(default_factory=dict)
    silences: tuple[tuple[Stage, float], ...] = ()
    last_t: float | None = None
    last_step: float | None = None
    longest_s: float = 0.0
    written_t: float | None = None


def past_of(node: NodePaths, attempt: int) -> Past:
    """Step gaps from the newest samples, lengths of phases from the journal, of the run's attempts up to this one."""
    durations: dict[Stage, list[float]] = {}
    last_t: float | None = None
    began: dict[int, float] = {}
    stepped: set[int] = set()
    phase: tuple[ev.Phase, float] | None = None
    breaks: list[float] = []
    flagged: Stage | None = None
    silences: list[tuple[Stage, float]] = []
    for event in facts_in(node.journal):
        match event:
            case ev.AttemptStarted():
                began[event.attempt], phase = event.t, None
            case ev.PhaseChanged():
                if phase is not None and (stage := _STAGES.get(phase[0])) is not None:
                    durations.setdefault(stage, []).append(event.t - phase[1])
                phase = (event.phase, event.t)
                breaks.append(event.t)
                last_t = event.t if event.attempt == attempt else last_t
            case ev.Progress() if event.attempt in began and event.attempt not in stepped:
                stepped.add(event.attempt)
                durations.setdefault(Stage.START, []).append(event.t - began[event.attempt])
            case ev.StallFlagged():
                flagged = next((stage for stage in Stage if stage.value == event.stage), None)
            case ev.StallEnded() if flagged is not None:
                silences.append((flagged, event.stalled_s))
                flagged = None
            case _:
                pass
    gaps, newest, step = _steps(node, attempt, breaks)
    if gaps:
        durations[Stage.STEP] = gaps
    known = [t for t in (last_t, newest) if t is not None]
    lasted = [silent_s for _, silent_s in silences]
    lasted += [length for stage, found in durations.items() if stage is not Stage.START for length in found]
    return Past(
        {stage: tuple(found) for stage, found in durations.items()},
        tuple(silences),
        max(known, default=None),
        step,
        max(lasted, default=0.0),
        _last_change(node.attempt(attempt)),
    )


def _last_change(paths: AttemptPaths) -> float | None:
    logs = [paths.agent_log, *paths.telemetry.glob("rank*.jsonl")]
    logs += [
        folder / f"{stream}.log"
        for folder in paths.rank_folders().values()
        for stream in ("stdout", "stderr")
    ]
    found = []
    for log in logs:
        with contextlib.suppress(OSError):
            found.append(log.stat().st_mtime)
    return max(found, default=None)


def _steps(
    node: NodePaths, attempt: int, breaks: list[float]
) -> tuple[list[float], float | None, float | None]:
    reader = SeriesReader(node.series, METRICS)
    reader.seek_tail(TAIL_BYTES)
    gaps: list[float] = []
    last: float | None = None
    step: float | None = None
    while samples := reader.read():
        for sample in samples:
            number = sample.v.get("step")
            if sample.a != attempt or number is None:
                continue
            split = last is not None and any(last <= t <= sample.t for t in breaks[-200:])
            if last is not None and sample.t > last and not split:
                gaps.append(sample.t - last)
            last, step = sample.t, number if step is None else max(step, number)
    return gaps, last, step
