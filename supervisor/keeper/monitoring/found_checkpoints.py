"""Checkpoints of a script that reports none: looked for in its folders beside the loop, and journalled when they are whole."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from supervisor.job.knobs.checkpoint_names import given_start
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.background import Background, within
from supervisor.keeper.clock import Clock
from supervisor.keeper.monitoring.checkpoint_owners import (
    SETTLE_S,
    ConcurrentRun,
    Named,
    Outputs,
    absolute,
    owner_besides,
)
from supervisor.keeper.monitoring.measured_facts import MeasuredFacts
from supervisor.keeper.monitoring.observations import FactSeen, Observation
from supervisor.run import events as ev
from supervisor.run.series import METRICS, SeriesReader
from supervisor.run.state import RunState
from supervisor.sources.checkpoint_layouts import (
    LIKE_CHECKPOINTS,
    MAX_DEPTH,
    MAX_FOUND,
    FoundCheckpoint,
    LikelyFile,
    find_checkpoints,
    newest_like_checkpoint,
    whole_saved,
)

LOOK_EVERY_S, LOOK_EVERY_MOST_S, DECIDING_EVERY_S = 5.0, 60.0, 1.0
LOOK_SHARE, WATCHED_SHARE = 0.01, 0.2
"""The part of the time that looking may take. A person at the screen who is asked whether to restart is to read the newest checkpoint; while they are in that dialog, it is looked for every second or so."""
NEWEST = 3
"""Of what was saved between two looks, in a large journal: a restart may need one before the newest."""
LAST_LOOK_S = 10.0
"""How long the end of an attempt waits for a file server: without a checkpoint nothing restarts by itself after a step."""
SEEN_FILE_S = CLOSE_S = 2.0
STEPS_TAIL_BYTES = 4 << 20
FIRST_STEPS_S = 120.0
"""So long the first steps of an attempt are waited for, before a checkpoint that bears a step and that no setting names is taken."""
MOST_SAVED = 32
"""Of the paths that processes were measured to save, the newest."""
STAMP_S = 0.02
READ_S = 1.0
"""A line of a log is read so long after it was written, at most."""
SAVED_S = 5.0
"""A file that was written so much later than the save that was measured is of somebody else."""
OWN_FOLDER_DEPTH = 2
"""In its own folder a script leaves files, and folders that are checkpoints; deeper down lies what others made."""
MOST_FOUND = 200
"""Of a folder that other runs write to as well, so many are looked through for this run's own."""


Others: TypeAlias = Callable[[float], Sequence[ConcurrentRun]]
"""The runs that trained since a time (wall seconds)."""


def _alone(_since_t: float) -> Sequence[ConcurrentRun]:
    return ()


def seen_file(job: JobSpec, state: RunState, others: Others = _alone) -> str | None:
    """The newest file of this run that is named like a checkpoint, as a clause for a person; None where none is known.

    Its completeness cannot be seen from outside, so nothing but a person's eye may use it. What another run may have written is
    left out. Looks for at most `SEEN_FILE_S`.
    """
    began_t = state.attempts[0].planned_t if state.attempts else None
    if began_t is None or state.checkpoint is not None or job.knobs.resume is not None:
        return None
    folders = dict.fromkeys([*(_folder(absolute(job, each)) for each in job.outputs), Path(job.cwd)])
    since_t, mine = began_t - SETTLE_S, Outputs.of(job)

    def look() -> LikelyFile | None:
        beside = others(since_t)

        def is_ours(path: str, t: float) -> bool:
            return owner_besides(path, t, mine, beside) is None and mine.outside(path, since_t) is None

        return newest_like_checkpoint(folders, since_t, is_ours)

    found = within(SEEN_FILE_S, look, "stoker-checkpoint-files")
    if found is None:
        return None
    at = time.strftime("%H:%M", time.localtime(found.t))
    return f"{shown_path(job, found.path)} was written at {at}; whether it is whole is not known"


def ranks_of(job: JobSpec) -> int | None:
    """How many ranks write to the folders that are looked at; None where that is not known."""
    if job.nnodes != "1":
        return None  # each node may write to a disk of its own
    if job.world_size is not None:
        return job.world_size
    if job.entry_kind is not EntryKind.COMMAND:
        return job.nproc_per_node
    return job.batch.world_size if job.batch is not None and job.batch.ranks_known else None


def _folder(reported: Path) -> Path:
    """A flag for the output may name the file itself."""
    return reported.parent if reported.name.lower().endswith(LIKE_CHECKPOINTS) else reported


class Sighted(NamedTuple):
    """The checkpoints of a look, in the order of their writing: this run's, and those that another may have written, with why.

    `shared_with`: the run that may have written the newest of these.
    """

    ours: list[FoundCheckpoint]
    unclear: list[tuple[FoundCheckpoint, str]]
    shared_with: str | None = None


def look_for(job: JobSpec, since_t: float, others: Others) -> Sighted:
    """The whole checkpoints that were written since a time, where the job's settings name; where they name no folder, also where scripts usually write."""
    mine, ranks = Outputs.of(job), ranks_of(job)
    found: dict[str, FoundCheckpoint] = {}
    for place in mine.named:
        is_folder = place.is_dir()
        where, depth = (place, MAX_DEPTH) if is_folder else (place.parent, OWN_FOLDER_DEPTH)
        for one in find_checkpoints([where], since_t, ranks=ranks, depth=depth, most=MOST_FOUND):
            if is_folder or mine.claim(one.path).named is not Named.NOT:
                found[one.path] = one
    if not found and not mine.folders:
        usual = [absolute(job, name) for name in job.outputs]
        elsewhere = find_checkpoints(usual, since_t, ranks=ranks, most=MOST_FOUND)
        if not elsewhere:
            own = [Path(job.cwd)]
            elsewhere = find_checkpoints(own, since_t, ranks=ranks, depth=OWN_FOLDER_DEPTH, most=MOST_FOUND)
        found = {one.path: one for one in elsewhere}
    beside = others(since_t) if found else ()
    ours: list[FoundCheckpoint] = []
    unclear: list[tuple[FoundCheckpoint, str]] = []
    shared_with = None
    for one in sorted(found.values(), key=lambda one: (one.t, one.step or 0)):
        other = owner_besides(one.path, one.t, mine, beside)
        if other is not None:
            if not other.is_its_own:
                shared_with = other.name
                unclear.append((one, f"run {other.name} may have written it"))
        elif (output := mine.outside(one.path, since_t)) is not None:
            unclear.append((one, f"this run writes to {shown_path(job, str(output))}"))
        else:
            ours.append(one)
    return Sighted(ours, unclear, shared_with)


class Furthest(NamedTuple):
    """The last step that this run has reached, and the highest that a checkpoint of it may bear."""

    step: int
    most: int
    mine: Outputs

    @property
    def why(self) -> str:
        """Why a checkpoint beyond it is not taken."""
        return f"this run has only reached step {self.step}"

    def is_beyond(self, found: FoundCheckpoint) -> bool:
        """Whether a checkpoint that no setting of this run names bears a higher step."""
        named = self.mine.claim(found.path).named is not Named.NOT
        return found.step is not None and found.step > self.most and not named


def furthest_step(job: JobSpec, state: RunState, series: Path | None) -> Furthest | None:
    """How far this run has come; None where that is not known.

    A checkpoint's step may be one ahead of the log's, lie before the next line that names a step, count what is accumulated, or, of an
    attempt that counts from 0 again, what earlier attempts did. Nothing is known of a run that began at a checkpoint, and of one that counts
    the steps of each epoch.
    """
    reached = [view.last_step for view in state.attempts if view.last_step is not None]
    if not reached or given_start(job.entry_args, job.knobs.starts) is not None:
        return None
    steps = [step for _, step in steps_seen(series)]
    climbs = [later - step for step, later in pairwise(steps) if later > step]
    restarts = sum(later < step / 2 for step, later in pairwise(steps[1:]))
    if not climbs or restarts >= len(state.attempts):
        return None
    factor = job.batch.accumulation_steps if job.batch is not None else 1
    most = (sum(reached) + int(max(*climbs, steps[0], 1))) * factor
    return Furthest(max(reached), most, Outputs.of(job))


class Untaken(NamedTuple):
    """A checkpoint that is newer than all of this run's and was not taken, and `why`."""

    path: str
    step: int
    step_by_time: bool
    why: str


def newest_untaken(
    job: JobSpec, state: RunState, others: Others, series: Path | None = None
) -> Untaken | None:
    """The newest checkpoint of which it is not known whether this run wrote it, if it is newer than those that are known. Looks for at most `LAST_LOOK_S`."""
    began_t = state.attempts[0].planned_t if state.attempts else None
    if began_t is None or any(not found.found for found in state.checkpoints) or not job.outputs:
        return None
    sighted = within(LAST_LOOK_S, lambda: look_for(job, began_t - SETTLE_S, others), "stoker-checkpoints")
    known_t = max((found.written_t or found.t for found in state.checkpoints), default=-math.inf)
    if sighted is None:
        return None
    limit = furthest_step(job, state, series) if sighted.ours else None
    far = [(one, limit.why) for one in sighted.ours if limit is not None and limit.is_beyond(one)]
    unclear = sorted((*sighted.unclear, *far), key=lambda pair: pair[0].t)
    if not unclear or unclear[-1][0].t <= known_t:
        return None
    found, why = unclear[-1]
    step = found.step if found.step is not None else step_at(found.t, steps_seen(series))
    view = state.attempt
    guess = step if step is not None else (view.last_step if view is not None else None) or 0
    return Untaken(found.path, guess, found.step is None, why)


def untaken_text(job: JobSpec, untaken: Untaken) -> str:
    """It as a clause for a person: which, of which step, and why it was not taken."""
    at = f"about step {untaken.step}, by its time" if untaken.step_by_time else f"step {untaken.step}"
    return f"{shown_path(job, untaken.path)} ({at}) is newer and was not taken: {untaken.why}"


def shown_path(job: JobSpec, path: str) -> str:
    """A path as the job's script would be given it, where it lies below its folder."""
    name = os.path.relpath(path, job.cwd)
    shown = path if name.startswith("..") else name
    return shown if shown.isprintable() else ascii(shown)


class FoundCheckpoints:
    """Follows one attempt after the other. Used by the keeper's one thread.

    Args:
        job: what runs.
        clock: its wall time is the run's.
        emit: journals a fact.
        series: the samples of this node, which say the step at a time; None: no step is known by time.
        others: the runs that trained since a time: what one of them may have written is not taken as this run's, unless it was measured.
        measured: the optimizer steps of the attempt that lives.
        apart_s: how far apart reports of one kind are; of what is saved more often only the newest are journalled.
    """

    def __init__(
        self,
        job: JobSpec,
        clock: Clock,
        emit: Callable[[ev.Event], None],
        series: Path | None = None,
        others: Others = _alone,
        measured: MeasuredFacts | None = None,
        apart_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._apart_s = apart_s
        self._job, self._others, self._measured = job, others, measured
        self._saved: dict[
            str, tuple[float, int | None]
        ] = {}  # path to when it was saved, and after how many steps
        self._looking_at, self._newest_t = self._saved, math.inf  # in the looker's thread
        self._is_new = False
        self._shared_with: str | None = None
        self._took_s = 0.0
        self._warned = False
        self._clock, self._emit, self._series = clock, emit, series
        self._looker: Background[list[FoundCheckpoint]] = Background("stoker-checkpoints")
        self._journalled: set[tuple[str, int | None, float]] = set()
        self._taken: dict[str, float] = {}  # path to when it was journalled last
        self._last_look = clock.mono()

    def hear(self, seen: Observation) -> None:
        """A process of this run saved something: its path is looked at, wherever it is."""
        if not isinstance(seen, FactSeen) or seen.record.get("kind") != "saved":
            return
        path, counted, t = (seen.record.get(name) for name in ("path", "step", "t_wall"))
        if isinstance(path, str) and os.path.isabs(path) and "\0" not in path:
            self._saved.pop(path, None)
            saved_t = float(t) if isinstance(t, int | float) else seen.t
            self._saved[path] = saved_t, counted if isinstance(counted, int) else None
            self._is_new = True
            while len(self._saved) > MOST_SAVED:
                del self._saved[next(iter(self._saved))]

    def look(self, state: RunState, *, watched: bool = False, deciding: bool = False) -> None:
        """Called at each tick: begins a look every few seconds, and journals what the last one found.

        `watched`: a screen is open. `deciding`: its person is in a dialog about the next attempt.
        """
        self._take(self._looker.poll(), state, trains=True)
        now = self._clock.mono()
        share = WATCHED_SHARE if watched else LOOK_SHARE
        least_s = DECIDING_EVERY_S if deciding or self._is_new else LOOK_EVERY_S
        wait_s = min(
            max(self._took_s / share, least_s, 0.0 if deciding else self._apart_s()), LOOK_EVERY_MOST_S
        )
        if now >= self._last_look + wait_s and self._begin(state):
            self._last_look, self._is_new = now, len(self._looking_at) < len(self._saved)

    def finish(self, state: RunState) -> None:
        """The attempt has ended: what it left decides how the next one starts."""
        self._taken.clear()
        if self._looker.busy:  # it began before the end
            self._take(self._looker.poll(LAST_LOOK_S), state)
        if not self._begin(state, is_over=True):
            return
        self._taken.clear()
        self._take(self._looker.poll(LAST_LOOK_S), state)
        self._saved.clear()

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
        newest_t = math.inf if is_over else self._clock.wall() + self._clock.ahead_s() - SETTLE_S
        self._looking_at = {path: saved for path, saved in self._saved.items() if saved[0] <= newest_t}
        self._newest_t = newest_t
        self._looker.start(lambda: self._find(since_t))
        return True

    def _find(self, since_t: float) -> list[FoundCheckpoint]:
        """In the looker's thread: what this run's processes were measured to save, and what is found on the disk besides."""
        began_s = time.perf_counter()
        found: dict[str, FoundCheckpoint] = {}  # by their paths behind links
        for path, (saved_t, counted) in self._looking_at.items():
            one = whole_saved(path, since_t, saved_t + SAVED_S, ranks=ranks_of(self._job))
            if one is not None:
                is_newest = one.t <= saved_t + STAMP_S  # of saves within a second only the first may be told
                found[os.path.realpath(one.path)] = replace(one, counted=counted if is_newest else None)
        sighted = look_for(self._job, since_t, self._others) if self._job.outputs else Sighted([], [])
        if any(os.path.realpath(one.path) not in found for one, _ in sighted.unclear):
            self._shared_with = sighted.shared_with or self._shared_with
        for one in sighted.ours:
            measured = found.get(real := os.path.realpath(one.path))
            found[real] = replace(one, counted=measured.counted) if measured is not None else one
        self._took_s = time.perf_counter() - began_s
        settled = (one for one in found.values() if one.t <= self._newest_t)
        return sorted(settled, key=lambda one: (one.t, one.step or 0))[-MAX_FOUND:]

    def _take(self, found: list[FoundCheckpoint] | None, state: RunState, *, trains: bool = False) -> None:
        view = state.attempt
        if self._shared_with is not None and not self._warned and view is not None:
            self._warned = True
            text = f"run {self._shared_with} may write to the same folder: no checkpoint there is taken as this run's; give each run its own"
            self._emit(
                ev.Advisory(t=self._clock.wall(), attempt=view.number, code="shared_output", text=text)
            )
        if not found or view is None:
            return
        known = {
            (one.path, step, one.written_t)
            for one in state.checkpoints
            for step in ((None,) if one.step_by_time else (one.step, None))
        } | self._journalled
        by_path = {one.path for one in state.checkpoints if one.written_t is None}
        # An adopting keeper, or one that left out an attempt, journals what was written while nobody looked.
        new = [one for one in found if one.path not in by_path and (one.path, one.step, one.t) not in known]
        steps = steps_seen(self._series) if any(one.step is None for one in new) else []
        if self._measured is not None:
            steps = steps or list(self._measured.steps)
        if any((one.step or 0) > (view.last_step or 0) + 1 for one in new):
            limit = furthest_step(self._job, state, self._series)
            if limit is None and trains and self._clock.wall() - view.planned_t < FIRST_STEPS_S:
                limit = Furthest(0, 0, Outputs.of(self._job))
            # It is looked at again: a step may be read in the log later than its checkpoint is found.
            new = [one for one in new if limit is None or one.counted is not None or not limit.is_beyond(one)]
        now = self._clock.mono()
        if trains and self._apart_s() > LOOK_EVERY_S:
            self._journalled |= {(one.path, one.step, one.t) for one in new[:-NEWEST]}
            new = new[-NEWEST:]
        for one in new:
            # A file that is kept up to date is written again and again: once a minute is enough to know where a restart would begin.
            if now - self._taken.get(one.path, float("-inf")) < LOOK_EVERY_MOST_S:
                continue
            self._taken[one.path] = now
            self._journalled.add((one.path, one.step, one.t))
            step, by_time = one.step, False
            if step is None:
                written_t = one.t - self._clock.ahead_s()
                step = named_step(one, written_t, steps)
                step = self._counted_step(one, written_t, state, steps) if step is None else step
                by_time = step is None
            if step is None:
                seen = step_at(written_t, steps)
                step = seen if seen is not None else view.last_step or 0
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

    def _counted_step(
        self, found: FoundCheckpoint, t: float, state: RunState, steps: Sequence[tuple[float, float]]
    ) -> int | None:
        """The step by the optimizer steps that its process counted; the script's own where it logs some.

        A log that begins with 0 or 1 says from which of them the script counts; its steps around the time `t` say that it counts these.
        """
        measured = self._measured
        total = measured.step_after(found.counted) if measured and found.counted is not None else None
        if total is None or measured is None or not measured.logs_steps:
            return total
        first = state.attempts[0].first_step
        own = total - 1 if first == 0 else total
        return own if first in {0, 1} and _is_between(own, t, steps, late_s=READ_S) else None


def steps_seen(series: Path | None) -> list[tuple[float, float]]:
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


def named_step(found: FoundCheckpoint, t: float, steps: Sequence[tuple[float, float]]) -> int | None:
    """The number in its name, where the steps seen around its time `t` show that it is the step: ``model_75.pt`` between steps 70 and 80."""
    if found.number is None or "epoch" in os.path.basename(found.path).lower():
        return None
    return found.number if _is_between(found.number, t, steps) else None


def _is_between(step: int, t: float, steps: Sequence[tuple[float, float]], *, late_s: float = 0.0) -> bool:
    """Whether a step lies between those seen before and after a time, which were seen up to `late_s` after they were logged."""
    before = [int(n) for seen_t, n in steps if seen_t <= t]
    if not before:
        return False
    last = before[-1]
    gap = next((last - n for n in reversed(before) if n < last), 0)
    after = next((int(n) for seen_t, n in steps if seen_t > t + late_s), -1)
    return last <= step <= (after if after > last else last + gap)
