"""Reads earlier failures from journals: recovery times and their parts, and earlier occurrences of the same failure."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from supervisor.run import events as ev
from supervisor.run.jsonl import NOT_DECODED
from supervisor.run.paths import RunPaths
from supervisor.run.regular import open_regular
from supervisor.run.state import RunState

# Reasons to end an attempt that had already failed; the failure is then at the time of that decision.
_OURS_AFTER_A_FAILURE = frozenset({ev.StopWhy.RANK_DIED, ev.StopWhy.HANG})


def recovery_of(facts: Iterable[ev.Event], attempt: int) -> ev.Recovered | None:
    """The recovery by `attempt`; None if nothing failed before it or it has completed no step."""
    after = attempt - 1
    at: dict[str, float] = {}
    last_t = 0.0
    for fact in facts:
        last_t = max(last_t, fact.t)
        match fact:
            case ev.RunEnded():
                at.clear()  # somebody may have continued the run at any later time, which is not a recovery
            case ev.RankExited(attempt=number) if number == after:
                at.setdefault("failed", fact.t)
            case ev.StopIntended(attempt=number) if number == after and fact.why in _OURS_AFTER_A_FAILURE:
                at.setdefault("failed", fact.t)
            case ev.ProcessesGone(attempt=number) if number == after and fact.exit_code != 0:
                at.setdefault("failed", fact.t)
            case ev.AttemptEnded(attempt=number) if number == after and fact.exit_code != 0:
                at["ended"] = fact.t
                at.setdefault("failed", fact.t)
            case ev.Diagnosed(attempt=number) if number == after and not fact.provisional:
                at["diagnosed"] = fact.t
            case ev.BackoffStarted(attempt=number) if number == after:
                at["due"] = fact.until
            case ev.LaunchIntended(attempt=number) if number == attempt:
                at["planned"] = fact.t
            case ev.AttemptStarted(attempt=number) if number == attempt:
                at["started"] = fact.t
            case ev.RankStarted(attempt=number) if number == attempt and fact.pid is not None:
                at.setdefault("ranks", fact.t)
            case ev.TrainerReady(attempt=number) if number == attempt:
                at["ready"] = fact.t
            case ev.Progress(attempt=number, step=step) if number == attempt and step is not None:
                at.setdefault("stepped", fact.t)
            case _:
                continue
    if "failed" not in at or "stepped" not in at:
        return None

    def span(start: str, end: str) -> float | None:
        return round(max(at[end] - at[start], 0.0), 3) if start in at and end in at else None

    loaded = "ready" if "ready" in at else "ranks"
    return ev.Recovered(
        t=last_t,
        attempt=attempt,
        after=after,
        total_s=round(max(at["stepped"] - at["failed"], 0.0), 3),
        end_s=span("failed", "ended"),
        detect_s=span("ended", "diagnosed"),
        wait_s=span("diagnosed", "due"),
        drain_s=span("due", "planned"),
        spawn_s=span("planned", "started"),
        rendezvous_s=span("started", "ranks"),
        load_s=span("ranks", "ready"),
        first_step_s=span(loaded, "stepped"),
    )


# -- the same failure again: verdicts with the same fingerprint ------------------------------------

MOST_RUNS = 40
# A week's journal is some 15 MB; verdicts stand between its progress lines.
MOST_JOURNAL_BYTES = 32 << 20
_WHOLE = 16  # digits: shorter marks name a failure before any log, and say nothing of its cause


class Sighting(NamedTuple):
    """The newest other run with the same failure, and how many more runs had it."""

    run_id: str
    attempt: int
    t: float
    more_runs: int = 0


def same_failure(state: RunState, fingerprint: str, attempt: int) -> tuple[int, ...]:
    """The other attempts of a run with the same failure."""
    return tuple(
        view.number
        for view in state.attempts
        if view.number != attempt
        and fingerprint
        and view.verdict is not None
        and view.verdict.fingerprint == fingerprint
    )


def seen_in_runs(fingerprint: str, runs: Iterable[RunPaths], own: Path) -> Sighting | None:
    """The newest other run (of `runs`, newest first) with the same failure; None if none of the last 40 had it."""
    if len(fingerprint) < _WHOLE:
        return None
    found: list[Sighting] = []
    for run in [run for run in runs if run.root.resolve() != own.resolve()][:MOST_RUNS]:
        sighting = _in_journal(run, fingerprint.encode())
        if sighting is not None:
            found.append(sighting)
    return found[0]._replace(more_runs=len(found) - 1) if found else None


def recurrence_lines(same: tuple[int, ...], sighting: Sighting | None) -> list[str]:
    """The recurrence in words, one line each."""
    lines = []
    if same:
        lines.append(f"the same failure as attempt{'s' if len(same) > 1 else ''} {', '.join(map(str, same))}")
    if sighting is not None:
        day = time.strftime("%Y-%m-%d", time.localtime(sighting.t))
        more = f", and in {sighting.more_runs} more" if sighting.more_runs else ""
        lines.append(f"seen before in run {sighting.run_id} (attempt {sighting.attempt}) on {day}{more}")
    return lines


def _in_journal(run: RunPaths, mark: bytes) -> Sighting | None:
    """The last verdict with this fingerprint, found without decoding the whole journal."""
    try:
        with open_regular(run.node().journal) as file:
            data = file.read(MOST_JOURNAL_BYTES)
    except OSError:
        return None
    place = data.rfind(b'"fingerprint":"' + mark + b'"')
    if place < 0:
        return None
    start, stop = data.rfind(b"\n", 0, place) + 1, data.find(b"\n", place)
    try:
        fact = json.loads(data[start : stop if stop >= 0 else len(data)])
        return Sighting(run.run_id, int(fact["attempt"]), float(fact["t"]))
    except (*NOT_DECODED, KeyError, TypeError):
        return None  # a damaged line does not count
