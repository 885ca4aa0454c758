"""Searches in the background for checkpoints that a script does not report, and journals them once they are complete.

A save measured in a process belongs to this run. Folders are searched only if nothing is measured (``--no-instrument``) or no
measured save was complete at the end. The search skips checkpoints that another run on this machine may have written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

from supervisor.job.knobs.resume_settings import ENDINGS, USUAL_OUTPUTS, given_start
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.background import Background
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.monitoring.measured_facts import MeasuredFacts
from supervisor.keeper.monitoring.observations import FactSeen, Observation
from supervisor.run import events as ev
from supervisor.run.index import known_runs
from supervisor.run.journal import read_state
from supervisor.run.ownership import keeper_is_alive
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.run.series import METRICS, SeriesReader
from supervisor.run.state import RunState
from supervisor.sources.checkpoint_layouts import (
    MAX_DEPTH,
    MAX_FOUND,
    FoundCheckpoint,
    find_checkpoints,
    whole_saved,
)

LOOK_EVERY_S, SEARCH_EVERY_S, REWRITTEN_S = 1.0, 60.0, 60.0
"""Seconds between checks if saves are measured, between searches if no saves are measured, and between reports of a file
that is rewritten repeatedly.
"""
LAST_LOOK_S = 10.0
"""Seconds to wait for a file server when an attempt ends, because a restart needs a checkpoint once a step has run."""
CLOSE_S = 2.0
SETTLE_S = 1.0
"""Tolerance in seconds, because file systems round timestamps but an attempt's start time comes from the keeper's clock."""
STAMP_S = 0.02
SAVED_S = 5.0
"""A file written more than this many seconds after the measured save was written by another process."""
READ_S = 1.0
"""A log line is read within this many seconds of being written."""
STEPS_TAIL_BYTES = 4 << 20
MOST_SAVED = 32
"""How many of the latest measured save paths to keep."""
OWN_FOLDER_DEPTH = 2
"""A script leaves files and checkpoint folders in its working directory. Deeper folders belong to other programs."""
MOST_FOUND = 200
NEWEST_RUNS = 50
"""How many of the latest runs to check for ones that trained at the same time."""


# -- which run a checkpoint belongs to, if only its folder can tell ---------------------------------


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a run writes: its working directory, plus the folders, files and name prefixes in its settings."""

    named: tuple[Path, ...]
    cwd: Path

    @classmethod
    def of(cls, job: JobSpec) -> Outputs:
        """Return a job's outputs. A common output folder counts only if the job's arguments mention it."""
        named = (*(name for name in job.outputs if name not in USUAL_OUTPUTS), *job.output_prefixes)
        return cls(tuple(absolute(job, name) for name in dict.fromkeys(named)), Path(job.cwd))

    def claims(self, path: str) -> bool:
        """Check whether a setting covers this path, either as a folder above it or as a prefix of one of its parts."""
        parts = os.path.relpath(path, self.cwd).split("/")
        return any(
            is_below(path, setting) or any(_bears(part, setting.name) for part in parts)
            for setting in self.named
        )

    def may_hold(self, path: str) -> bool:
        """Check whether the run may have written this path."""
        return self.claims(path) or (not self.named and is_below(path, self.cwd))


class ConcurrentRun(NamedTuple):
    """A run that trained at the same time."""

    name: str
    outputs: Outputs


Others: TypeAlias = Callable[[float], Sequence[ConcurrentRun]]
"""Returns the runs that have trained since a given time (wall-clock seconds)."""


def concurrent_runs(run: RunPaths, since_t: float, env: Mapping[str, str]) -> list[ConcurrentRun]:
    """Return this machine's other runs that still had an unfinished attempt at `since_t` (wall time)."""
    found = []
    for other in known_runs(run.root.parent, env)[:NEWEST_RUNS]:
        node = other.node()
        try:
            if other.root.samefile(run.root):
                continue
            if not keeper_is_alive(node.lock) and node.journal.stat().st_mtime < since_t:
                continue
            job = read_run_file(other.run_json).job
        except (OSError, BadRunFile):
            continue  # deleted meanwhile, or an observed run
        attempts = read_state(node.journal).attempts
        if any(attempt.ended_t is None or attempt.ended_t >= since_t for attempt in attempts):
            found.append(ConcurrentRun(other.run_id, Outputs.of(job)))
    return found


def search(job: JobSpec, since_t: float, others: Others) -> tuple[list[FoundCheckpoint], str | None]:
    """Return this run's complete checkpoints, oldest first, and the other run, if any, that may have written a skipped one.

    Search the locations in the job's settings and, if those are empty, the places where scripts usually write.
    """
    mine, ranks = Outputs.of(job), ranks_of(job)
    found: dict[str, FoundCheckpoint] = {}

    def look(folder: Path, depth: int) -> None:
        ones = find_checkpoints([folder], since_t, ranks=ranks, depth=depth, most=MOST_FOUND)
        found.update({one.path: one for one in ones})

    for place in mine.named:
        is_folder = place.is_dir()
        look(place if is_folder else place.parent, MAX_DEPTH if is_folder else OWN_FOLDER_DEPTH)
    if not any(map(mine.claims, found)):
        for name in job.outputs:
            look(absolute(job, name), MAX_DEPTH)
        if not found:
            look(Path(job.cwd), OWN_FOLDER_DEPTH)
    # A run that ended before this one began does not count, even if it ended just now, as in a shell loop.
    beside = others(since_t + SETTLE_S) if found else ()
    ours: list[FoundCheckpoint] = []
    shared_with = None
    for one in sorted(found.values(), key=_age):
        is_named = mine.claims(one.path)
        theirs = [r for r in beside if r.outputs.claims(one.path)]
        maybe = theirs or [r for r in beside if not is_named and r.outputs.may_hold(one.path)]
        if not maybe and (is_named or not mine.named):
            ours.append(one)
        elif is_named or not (theirs or mine.named):
            shared_with = maybe[-1].name
    return ours, shared_with


def is_too_far(job: JobSpec, state: RunState, found: FoundCheckpoint) -> bool:
    """Check whether an unclaimed checkpoint comes from a different training run, i.e. its step is far beyond those of this run.

    An attempt may restart its count from 0, and a checkpoint may be written before the next step is logged, or be numbered in
    micro-batches.
    """
    reached = [view.last_step for view in state.attempts if view.last_step is not None]
    if found.step is None or not reached or given_start(job.entry_args, job.knobs.starts) is not None:
        return False
    factor = job.batch.accumulation_steps if job.batch is not None else 1
    return found.step > 2 * (sum(reached) + 1) * factor and not Outputs.of(job).claims(found.path)


def ranks_of(job: JobSpec) -> int | None:
    """Return how many ranks write to the searched folders, or None if unknown."""
    if job.nnodes != "1":
        return None  # each node may write to its own disk
    if job.world_size is not None:
        return job.world_size
    if job.entry_kind is not EntryKind.COMMAND:
        return job.nproc_per_node
    return job.batch.world_size if job.batch is not None and job.batch.ranks_known else None


def shown_path(job: JobSpec, path: str) -> str:
    """Return a path as the job's script would write it: relative if it is under the script's folder."""
    name = os.path.relpath(path, job.cwd)
    shown = path if name.startswith("..") else name
    return shown if shown.isprintable() else ascii(shown)


def absolute(job: JobSpec, name: str) -> Path:
    """Return a path as the job's script would open it."""
    return Path(job.cwd, os.path.expanduser(name))


def is_below(path: str, folder: Path) -> bool:
    """Check whether a path is this folder or lies inside it, following links."""
    real, above = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath((real, above)) == above


def _bears(part: str, name: str) -> bool:
    """Check whether a path component equals or starts with a name: ``run1`` matches run1_5.pt, not run12.pt or runner.pt."""
    stem = next((name.removesuffix(end) for end in ENDINGS if name.lower().endswith(end)), name)
    return bool(stem) and part.startswith(stem) and not part[len(stem) :][:1].isalnum()


def _age(found: FoundCheckpoint) -> tuple[float, int]:
    return found.t, found.step or 0


# -- while the attempt is running ------------------------------------------------------------------


class FoundCheckpoints:
    """Finds the checkpoints of successive attempts. Used only by the keeper's single thread.

    Args:
        job: the job that is running.
        clock: supplies the run's wall time.
        emit: journals an event.
        series: this node's samples, which give the step at a certain time, or None if there are no samples.
        others: returns the runs that have trained since a given time.
        measured: the live attempt's optimizer steps.
    """

    def __init__(
        self,
        job: JobSpec,
        clock: Clock,
        emit: Callable[[ev.Event], None],
        series: Path | None = None,
        others: Others = lambda _since_t: (),
        measured: MeasuredFacts | None = None,
    ) -> None:
        self._job, self._clock, self._emit, self._series = job, clock, emit, series
        self._others, self._measured = others, measured
        self._saved: dict[str, tuple[float, int | None]] = {}
        """When each path was saved, and how many steps its process had counted by then."""
        self._is_measured = self._is_new = self._warned = False
        self._looker: Background[tuple[list[FoundCheckpoint], str | None]] = Background("stoker-checkpoints")
        self._journalled: set[tuple[str, int | None, float]] = set()
        self._taken: dict[str, float] = {}  # path to the time it was last journaled
        self._last_look = clock.mono()

    def hear(self, seen: Observation) -> None:
        """Record the path of a save made by one of the run's processes, in any location. It is checked later."""
        if not isinstance(seen, FactSeen):
            return
        self._is_measured = True
        path, counted, t = (seen.record.get(name) for name in ("path", "step", "t_wall"))
        if seen.record.get("kind") != "saved" or not isinstance(path, str):
            return
        if not os.path.isabs(path) or "\0" in path:
            return
        self._saved.pop(path, None)
        saved_t = float(t) if isinstance(t, int | float) else seen.t
        self._saved[path] = saved_t, counted if isinstance(counted, int) else None
        self._is_new = True
        if len(self._saved) > MOST_SAVED:
            del self._saved[next(iter(self._saved))]

    def look(self, state: RunState) -> None:
        """Journal complete checkpoints among new measured saves. If nothing is measured, search folders once a minute. Call every tick."""
        self._take(self._looker.poll(), state)
        now, wait_s = self._clock.mono(), LOOK_EVERY_S if self._is_new else SEARCH_EVERY_S
        is_due = now >= self._last_look + wait_s and (self._is_new or not self._is_measured)
        if is_due and self._begin(state):
            self._last_look = now

    def finish(self, state: RunState) -> None:
        """Find the checkpoints that an ended attempt left behind, because the next attempt may start from one."""
        self._taken.clear()
        if self._looker.busy:  # the search started before the end
            self._take(self._looker.poll(LAST_LOOK_S), state)
        if self._begin(state, is_over=True):
            self._taken.clear()
            self._take(self._looker.poll(LAST_LOOK_S), state)
            self._saved.clear()
            self._is_measured = False

    def close(self) -> None:
        """Wait briefly for a search in progress."""
        self._looker.close(CLOSE_S)

    def _begin(self, state: RunState, *, is_over: bool = False) -> bool:
        began_t = state.attempts[0].planned_t if state.attempts else None
        reported = any(not found.found for found in state.checkpoints)
        if began_t is None or reported or not (self._job.outputs or self._saved) or self._looker.busy:
            return False
        # File times are by the machine's clock. After it is set back, files look older than they are.
        since_t = began_t - SETTLE_S + min(self._clock.ahead_s(), 0.0)
        # A save from a moment ago may not have its final name yet, and its record may be unread.
        until_t = math.inf if is_over else self._clock.wall() + self._clock.ahead_s() - SETTLE_S
        saved = {path: save for path, save in self._saved.items() if save[0] <= until_t}
        self._is_new = len(saved) < len(self._saved)
        searches = is_over or not self._is_measured
        self._looker.start(lambda: self._find(since_t, until_t, saved, searches=searches))
        return True

    def _find(
        self, since_t: float, until_t: float, saved: Mapping[str, tuple[float, int | None]], *, searches: bool
    ) -> tuple[list[FoundCheckpoint], str | None]:
        """Find measured saves, or else checkpoints in folders, plus any run that may share them. Runs in the search thread."""
        found: dict[str, FoundCheckpoint] = {}  # by path with links resolved
        for path, (saved_t, counted) in saved.items():
            one = whole_saved(path, since_t, saved_t + SAVED_S, ranks=ranks_of(self._job))
            if one is not None:
                is_newest = one.t <= saved_t + STAMP_S  # of saves within a second, only one may be reported
                found[os.path.realpath(one.path)] = replace(one, counted=counted if is_newest else None)
        shared_with = None
        if searches and not found and self._job.outputs:
            ours, shared_with = search(self._job, since_t, self._others)
            found = {one.path: one for one in ours}
        settled = (one for one in found.values() if one.t <= until_t)
        return sorted(settled, key=_age)[-MAX_FOUND:], shared_with

    def _take(self, looked: tuple[list[FoundCheckpoint], str | None] | None, state: RunState) -> None:
        view = state.attempt
        if looked is None or view is None:
            return
        found, shared_with = looked
        if shared_with is not None and not self._warned:
            self._warned = True
            text = f"run {shared_with} may write to the same folder: no checkpoint there is taken as this run's; give each run its own"
            self._emit(
                ev.Advisory(t=self._clock.wall(), attempt=view.number, code="shared_output", text=text)
            )
        # An adopting keeper, or one that skipped an attempt, journals what was written in the meantime.
        new = [one for one in found if not self._is_known(one, state)]
        # Keep checking it, because the log may show a later step after its checkpoint is found.
        new = [one for one in new if one.counted is not None or not is_too_far(self._job, state, one)]
        now = self._clock.mono()
        for one in new:
            # A file that is rewritten repeatedly is reported once a minute, enough to know where a restart begins.
            if now - self._taken.get(one.path, -math.inf) < REWRITTEN_S:
                continue
            self._taken[one.path] = now
            self._journalled.add((one.path, one.step, one.t))
            step, by_time = self._step_of(one, state)
            self._emit(
                ev.CheckpointCommitted(
                    t=self._clock.wall(),
                    attempt=view.number,
                    step=step,
                    path=one.path,
                    found=True,
                    layout=one.layout,
                    number=one.number,
                    written_t=one.t,
                    step_by_time=by_time,
                )
            )

    def _is_known(self, one: FoundCheckpoint, state: RunState) -> bool:
        if (one.path, one.step, one.t) in self._journalled:
            return True
        journalled = [known for known in state.checkpoints if known.path == one.path]
        return any(known.written_t in {None, one.t} for known in journalled)

    def _step_of(self, one: FoundCheckpoint, state: RunState) -> tuple[int, bool]:
        """Return a checkpoint's step and whether it comes from log times rather than from its name or its process's count.

        If the script logs steps, its own counter gives the step. A log that starts at 0 or 1 shows where the script starts
        counting, and its steps around the save show that it counts optimizer steps.
        """
        if one.step is not None:
            return one.step, False
        t, measured = one.t - self._clock.ahead_s(), self._measured
        steps = logged_steps(self._series) or (list(measured.steps) if measured is not None else [])
        if measured is not None and one.counted is not None:
            total, first = measured.step_after(one.counted), state.attempts[0].first_step
            if total is not None and not measured.logs_steps:
                return total, False
            own = total - 1 if total is not None and first == 0 else total
            if own is not None and first in {0, 1} and _is_between(own, t, steps):
                return own, False
        seen, last_step = step_at(t, steps), state.attempts[-1].last_step
        return seen if seen is not None else last_step or 0, True


# -- the step at a given time ----------------------------------------------------------------------


def logged_steps(series: Path | None) -> list[tuple[float, float]]:
    """Return the wall time and step of the latest samples that have a step, in order of arrival."""
    if series is None:
        return []
    reader = SeriesReader(series, METRICS)
    reader.seek_tail(STEPS_TAIL_BYTES)
    samples = chain.from_iterable(iter(reader.read, []))
    return [(sample.t, step) for sample in samples if (step := sample.v.get("step")) is not None]


def step_at(t: float, steps: Sequence[tuple[float, float]]) -> int | None:
    """Return the latest step seen by the given time, or None."""
    return next((int(n) for seen_t, n in reversed(steps) if seen_t <= t), None)


def _is_between(step: int, t: float, steps: Sequence[tuple[float, float]]) -> bool:
    """Check whether a step lies between the steps seen before and after a time. Either may have been read `READ_S` late."""
    before = [int(n) for seen_t, n in steps if seen_t <= t]
    if not before:
        return False
    last = before[-1]
    gap = next((last - n for n in reversed(before) if n < last), 0)
    after = next((int(n) for seen_t, n in steps if seen_t > t + READ_S), -1)
    return last <= step <= (after if after > last else last + gap)
