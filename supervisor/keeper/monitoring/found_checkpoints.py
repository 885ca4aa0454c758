"""Checkpoints of a script that reports none itself: looked for beside the loop, and journalled once they are whole.

What a process was measured to save is this run's own. Folders are searched only where nothing is measured (``--no-instrument``), or where
nothing measured was whole at the end; there a checkpoint that another run of this machine may have written is not taken.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

from supervisor.job.knobs.resume_settings import ENDINGS, USUAL_OUTPUTS, given_start
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.base.background import Background, within
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

LOOK_EVERY_S, LOOK_EVERY_MOST_S, WATCHED_EVERY_S = 5.0, 60.0, 1.0
LOOK_SHARE, WATCHED_SHARE = 0.01, 0.2
"""The part of the time that a look may take; more while a screen is open, whose person may be asked whether to restart."""
NEWEST = 3
"""Journalled of what was saved between two looks while it trains: a restart may need one before the newest."""
LAST_LOOK_S = 10.0
"""How long the end of an attempt waits for a file server: without a checkpoint nothing restarts by itself after a step."""
CLOSE_S = 2.0
SETTLE_S = 1.0
"""File systems stamp in steps of up to a second, and an attempt's own start is ours."""
STAMP_S = 0.02
SAVED_S = 5.0
"""A file that was written this much later than the measured save belongs to somebody else."""
READ_S = 1.0
"""A log line is read at most this long after it was written."""
STEPS_TAIL_BYTES = 4 << 20
MOST_SAVED = 32
"""Of the paths that processes were measured to save, the newest."""
OWN_FOLDER_DEPTH = 2
"""In its own folder a script leaves files, and folders that are checkpoints; deeper down lies what others made."""
MOST_FOUND = 200
NEWEST_RUNS = 50
"""This many of the newest runs may have trained at the same time."""


# -- whose a checkpoint is, where only its folder tells --------------------------------------------


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a run writes: the folders, files and beginnings of names that its settings give, and the folder that it runs in."""

    named: tuple[Path, ...]
    cwd: Path

    @classmethod
    def of(cls, job: JobSpec) -> Outputs:
        """Those of a job: a usual folder counts where its arguments name it."""
        named = (*(name for name in job.outputs if name not in USUAL_OUTPUTS), *job.output_prefixes)
        return cls(tuple(absolute(job, name) for name in dict.fromkeys(named)), Path(job.cwd))

    def claims(self, path: str) -> bool:
        """Whether a setting names this path: a folder above it, or what one of its parts begins with."""
        parts = os.path.relpath(path, self.cwd).split("/")
        return any(
            is_below(path, setting) or any(_bears(part, setting.name) for part in parts)
            for setting in self.named
        )

    def may_hold(self, path: str) -> bool:
        """Whether the run may have written this path."""
        return self.claims(path) or (not self.named and is_below(path, self.cwd))


class ConcurrentRun(NamedTuple):
    """A run that trained at the same time."""

    name: str
    outputs: Outputs


Others: TypeAlias = Callable[[float], Sequence[ConcurrentRun]]
"""The runs that trained since a time (wall seconds)."""


def concurrent_runs(run: RunPaths, since_t: float, env: Mapping[str, str]) -> list[ConcurrentRun]:
    """The other runs of this machine with an attempt that had not ended at `since_t` (wall seconds)."""
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
            continue  # deleted meanwhile, or one that only watches
        attempts = read_state(node.journal).attempts
        if any(attempt.ended_t is None or attempt.ended_t >= since_t for attempt in attempts):
            found.append(ConcurrentRun(other.run_id, Outputs.of(job)))
    return found


class Search(NamedTuple):
    """This run's whole checkpoints, oldest first; others that were found, and why they are not taken; a run that may have written them."""

    ours: list[FoundCheckpoint]
    unclear: Sequence[tuple[FoundCheckpoint, str]] = ()
    shared_with: str | None = None


def search(job: JobSpec, since_t: float, others: Others) -> Search:
    """The checkpoints written since a time where the job's settings name; where nothing is there, also where scripts usually write."""
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
    # A run that ended before this one began does not count, even if it ended a moment ago, as in a shell's loop.
    beside = others(since_t + SETTLE_S) if found else ()
    ours: list[FoundCheckpoint] = []
    unclear: list[tuple[FoundCheckpoint, str]] = []
    shared_with = None
    for one in sorted(found.values(), key=_age):
        is_named = mine.claims(one.path)
        theirs = [r for r in beside if r.outputs.claims(one.path)]
        maybe = theirs or [r for r in beside if not is_named and r.outputs.may_hold(one.path)]
        if not maybe and (is_named or not mine.named):
            ours.append(one)
        elif is_named or not (theirs or mine.named):
            shared_with = maybe[-1].name
            unclear.append((one, f"run {shared_with} may have written it"))
        elif not theirs:
            unclear.append((one, f"this run writes to {shown_path(job, str(mine.named[0]))}"))
    return Search(ours, unclear, shared_with)


def is_too_far(job: JobSpec, state: RunState, found: FoundCheckpoint) -> bool:
    """Whether a checkpoint that no setting names bears a step far beyond what this run has reached: another training made it.

    An attempt may count from 0 again, a checkpoint may lie before the next line that names a step, and may count micro-batches.
    """
    reached = [view.last_step for view in state.attempts if view.last_step is not None]
    if found.step is None or not reached or given_start(job.entry_args, job.knobs.starts) is not None:
        return False
    factor = job.batch.accumulation_steps if job.batch is not None else 1
    return found.step > 2 * (sum(reached) + 1) * factor and not Outputs.of(job).claims(found.path)


def newest_untaken(job: JobSpec, state: RunState, others: Others) -> str:
    """A clause with the newest checkpoint that an unmeasured run did not take, and why; empty if it has one of its own that is as new."""
    began_t = state.attempts[0].planned_t if state.attempts else None
    is_measured = any(view.measured is not None for view in state.attempts)
    reported = any(not found.found for found in state.checkpoints)
    if began_t is None or is_measured or reported or not job.outputs:
        return ""
    found = within(LAST_LOOK_S, lambda: search(job, began_t - SETTLE_S, others), "stoker-checkpoints")
    if found is None:
        return ""
    far = (one for one in found.ours if is_too_far(job, state, one))
    untaken = [*found.unclear, *((one, f"this run has only reached step {state.last_step}") for one in far)]
    one, why = max(untaken, key=lambda pair: pair[0].t, default=(None, ""))
    if one is None or any((known.written_t or known.t) >= one.t for known in state.checkpoints):
        return ""
    step = f"step {one.step}" if one.step is not None else "its step is not known"
    return f"{shown_path(job, one.path)} ({step}) is newer and was not taken: {why}"


def ranks_of(job: JobSpec) -> int | None:
    """How many ranks write to the folders that are looked at; None where that is not known."""
    if job.nnodes != "1":
        return None  # each node may write to a disk of its own
    if job.world_size is not None:
        return job.world_size
    if job.entry_kind is not EntryKind.COMMAND:
        return job.nproc_per_node
    return job.batch.world_size if job.batch is not None and job.batch.ranks_known else None


def shown_path(job: JobSpec, path: str) -> str:
    """A path as the job's script would be given it, where it lies below its folder."""
    name = os.path.relpath(path, job.cwd)
    shown = path if name.startswith("..") else name
    return shown if shown.isprintable() else ascii(shown)


def absolute(job: JobSpec, name: str) -> Path:
    """A path as the job's script would open it."""
    return Path(job.cwd, os.path.expanduser(name))


def is_below(path: str, folder: Path) -> bool:
    """Whether a path is this folder or lies in it, whatever links lead there."""
    real, above = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath((real, above)) == above


def _bears(part: str, name: str) -> bool:
    """Whether a name in a path is this one, or begins with it: ``run1`` begins run1_5.pt, and neither run12.pt nor runner.pt."""
    stem = next((name.removesuffix(end) for end in ENDINGS if name.lower().endswith(end)), name)
    return bool(stem) and part.startswith(stem) and not part[len(stem) :][:1].isalnum()


def _age(found: FoundCheckpoint) -> tuple[float, int]:
    return found.t, found.step or 0


# -- while the attempt lives -----------------------------------------------------------------------


class FoundCheckpoints:
    """Follows one attempt after the other. Used by the keeper's one thread.

    Args:
        job: what runs.
        clock: its wall time is the run's.
        emit: journals a fact.
        series: the samples of this node, which say the step at a time; None: no step is known by time.
        others: the runs that trained since a time.
        measured: the optimizer steps of the attempt that lives.
        apart_s: how far apart reports of one kind are by now.
    """

    def __init__(
        self,
        job: JobSpec,
        clock: Clock,
        emit: Callable[[ev.Event], None],
        series: Path | None = None,
        others: Others = lambda _since_t: (),
        measured: MeasuredFacts | None = None,
        apart_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._job, self._clock, self._emit, self._series = job, clock, emit, series
        self._others, self._measured, self._apart_s = others, measured, apart_s
        self._saved: dict[str, tuple[float, int | None]] = {}
        """Path to when it was saved, and after how many steps of its process."""
        self._is_measured = self._is_new = self._warned = False
        self._looker: Background[tuple[list[FoundCheckpoint], str | None]] = Background("stoker-checkpoints")
        self._journalled: set[tuple[str, int | None, float]] = set()
        self._taken: dict[str, float] = {}  # path to when it was journalled last
        self._last_look, self._took_s = clock.mono(), 0.0

    def hear(self, seen: Observation) -> None:
        """A process of this run saved something: its path is looked at, wherever it is."""
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

    def look(self, state: RunState, *, watched: bool = False) -> None:
        """Called at each tick: begins a look every few seconds, and journals what the last one found. `watched`: a screen is open."""
        self._take(self._looker.poll(), state, trains=True)
        now, share = self._clock.mono(), WATCHED_SHARE if watched else LOOK_SHARE
        least_s = WATCHED_EVERY_S if watched or self._is_new else max(LOOK_EVERY_S, self._apart_s())
        wait_s = min(max(self._took_s / share, least_s), LOOK_EVERY_MOST_S)
        if now >= self._last_look + wait_s and self._begin(state):
            self._last_look = now

    def finish(self, state: RunState) -> None:
        """The attempt has ended: what it left decides how the next one starts."""
        self._taken.clear()
        if self._looker.busy:  # it began before the end
            self._take(self._looker.poll(LAST_LOOK_S), state)
        if self._begin(state, is_over=True):
            self._taken.clear()
            self._take(self._looker.poll(LAST_LOOK_S), state)
            self._saved.clear()
            self._is_measured = False

    def close(self) -> None:
        """Wait a little for a look that is under way."""
        self._looker.close(CLOSE_S)

    def _begin(self, state: RunState, *, is_over: bool = False) -> bool:
        began_t = state.attempts[0].planned_t if state.attempts else None
        reported = any(not found.found for found in state.checkpoints)
        if began_t is None or reported or not (self._job.outputs or self._saved) or self._looker.busy:
            return False
        # Files bear the machine's time: where its clock was set back, they look older than they are.
        since_t = began_t - SETTLE_S + min(self._clock.ahead_s(), 0.0)
        # What was saved a moment ago may be about to get its last name, and its record may not have been read.
        until_t = math.inf if is_over else self._clock.wall() + self._clock.ahead_s() - SETTLE_S
        saved = {path: save for path, save in self._saved.items() if save[0] <= until_t}
        self._is_new = len(saved) < len(self._saved)
        searches = is_over or not self._is_measured
        self._looker.start(lambda: self._find(since_t, until_t, saved, searches=searches))
        return True

    def _find(
        self, since_t: float, until_t: float, saved: Mapping[str, tuple[float, int | None]], *, searches: bool
    ) -> tuple[list[FoundCheckpoint], str | None]:
        """In the looker's thread: what was measured to be saved, or else is found in folders; and who may write there, too."""
        began_s = time.perf_counter()
        found: dict[str, FoundCheckpoint] = {}  # by their paths behind links
        for path, (saved_t, counted) in saved.items():
            one = whole_saved(path, since_t, saved_t + SAVED_S, ranks=ranks_of(self._job))
            if one is not None:
                is_newest = one.t <= saved_t + STAMP_S  # of saves within a second only the first may be told
                found[os.path.realpath(one.path)] = replace(one, counted=counted if is_newest else None)
        shared_with = None
        if searches and not found and self._job.outputs:
            ours, _, shared_with = search(self._job, since_t, self._others)
            found = {one.path: one for one in ours}
        self._took_s = time.perf_counter() - began_s
        settled = (one for one in found.values() if one.t <= until_t)
        return sorted(settled, key=_age)[-MAX_FOUND:], shared_with

    def _take(
        self,
        looked: tuple[list[FoundCheckpoint], str | None] | None,
        state: RunState,
        *,
        trains: bool = False,
    ) -> None:
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
        # An adopting keeper, or one that left out an attempt, journals what was written while nobody looked.
        new = [one for one in found if not self._is_known(one, state)]
        # It is looked at again: a step may be read in the log later than its checkpoint is found.
        new = [one for one in new if one.counted is not None or not is_too_far(self._job, state, one)]
        if trains:
            self._journalled |= {(one.path, one.step, one.t) for one in new[:-NEWEST]}
            new = new[-NEWEST:]
        now = self._clock.mono()
        for one in new:
            # A file that is kept up to date is written again and again: once a minute is enough to know where a restart would begin.
            if now - self._taken.get(one.path, -math.inf) < LOOK_EVERY_MOST_S:
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
        """Its step: by its name, by what its process counted, by the steps in the log around its time; and whether only by that."""
        if one.step is not None:
            return one.step, False
        t = one.t - self._clock.ahead_s()
        steps = logged_steps(self._series) or (
            list(self._measured.steps) if self._measured is not None else []
        )
        counted = self._counted_step(one, t, state, steps)
        if counted is not None:
            return counted, False
        seen, last_step = step_at(t, steps), state.attempts[-1].last_step
        return seen if seen is not None else last_step or 0, True

    def _counted_step(
        self, one: FoundCheckpoint, t: float, state: RunState, steps: Sequence[tuple[float, float]]
    ) -> int | None:
        """The step by the optimizer steps that its process counted; the script's own where it logs some.

        A log that begins with 0 or 1 says from which of them the script counts; its steps around the time `t` say that it counts these.
        """
        measured = self._measured
        total = measured.step_after(one.counted) if measured and one.counted is not None else None
        if total is None or measured is None or not measured.logs_steps:
            return total
        first = state.attempts[0].first_step
        own = total - 1 if first == 0 else total
        return own if first in {0, 1} and _is_between(own, t, steps, READ_S) else None


# -- the step at a time ----------------------------------------------------------------------------


def logged_steps(series: Path | None) -> list[tuple[float, float]]:
    """Wall time and step of the newest samples that name a step, in the order in which they came."""
    if series is None:
        return []
    reader = SeriesReader(series, METRICS)
    reader.seek_tail(STEPS_TAIL_BYTES)
    samples = chain.from_iterable(iter(reader.read, []))
    return [(sample.t, step) for sample in samples if (step := sample.v.get("step")) is not None]


def step_at(t: float, steps: Sequence[tuple[float, float]]) -> int | None:
    """The newest step that had been seen at a time."""
    return next((int(n) for seen_t, n in reversed(steps) if seen_t <= t), None)


def _is_between(step: int, t: float, steps: Sequence[tuple[float, float]], late_s: float) -> bool:
    """Whether a step lies between those seen before and after a time, which were seen up to `late_s` after they were logged."""
    before = [int(n) for seen_t, n in steps if seen_t <= t]
    if not before:
        return False
    last = before[-1]
    gap = next((last - n for n in reversed(before) if n < last), 0)
    after = next((int(n) for seen_t, n in steps if seen_t > t + late_s), -1)
    return last <= step <= (after if after > last else last + gap)
