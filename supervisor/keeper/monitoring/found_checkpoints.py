"""Checkpoints of a script that reports none: looked for in its folders beside the loop, and journalled when they are whole."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from supervisor.job.knobs.resuming.checkpoint_flags import USUAL_OUTPUTS
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.keeper.background import Background, within
from supervisor.keeper.clock import Clock
from supervisor.run import events as ev
from supervisor.run.access.lock import keeper_is_alive
from supervisor.run.index import known_runs
from supervisor.run.journal import read_state
from supervisor.run.paths import RunPaths
from supervisor.run.runfile import BadRunFile, read_run_file
from supervisor.run.series import METRICS, SeriesReader
from supervisor.run.state import RunState
from supervisor.sources.checkpoints import (
    LIKE_CHECKPOINTS,
    FoundCheckpoint,
    find_checkpoints,
    newest_like_checkpoint,
)

LOOK_EVERY_S, LOOK_EVERY_MOST_S = 5.0, 60.0
LOOK_SHARE = 0.01
"""A person who is asked whether to stop is to read the newest checkpoint; large folders and slow servers are looked at less often."""
LAST_LOOK_S = 10.0
"""How long the end of an attempt waits for a file server: without a checkpoint nothing restarts by itself after a step."""
SEEN_FILE_S = CLOSE_S = 2.0
STEPS_TAIL_BYTES = 4 << 20
OWN_FOLDER_DEPTH = 2
"""In its own folder a script leaves files, and folders that are checkpoints; deeper down lies what others made."""
SETTLE_S = 1.0
"""File systems stamp in steps of up to a second, and an attempt's own start is ours."""
LOOK_BACK = 50
"""So many of the newest runs may have trained at the same time."""


@dataclass(frozen=True, slots=True)
class ConcurrentRun:
    """A run that trained at the same time. `named`: the folders that its arguments name; `cwd`: where it writes if they name none."""

    name: str
    named: tuple[Path, ...]
    cwd: Path

    def writes(self, path: str) -> bool:
        """Whether a checkpoint at `path` may be its own."""
        return _is_below(path, self.named or (self.cwd,))


def concurrent_runs(run: RunPaths, since_t: float, env: Mapping[str, str]) -> list[ConcurrentRun]:
    """The runs of this machine with an attempt that had not ended at `since_t` (wall seconds)."""
    found = []
    for other in known_runs(run.root.parent, env)[:LOOK_BACK]:
        node = other.node()
        try:
            if other.root.samefile(run.root):
                continue
            if not keeper_is_alive(node.lock) and node.journal.stat().st_mtime < since_t:
                continue
            job = read_run_file(other.run_json).job
        except (OSError, BadRunFile):
            continue  # deleted meanwhile, or one that only watches
        attempts = read_state(node.journal, skips_progress=True).attempts
        if any(attempt.ended_t is None or attempt.ended_t >= since_t for attempt in attempts):
            found.append(ConcurrentRun(other.run_id, _named(job), Path(job.cwd)))
    return found


def _is_below(path: str, folders: Iterable[Path]) -> bool:
    real = os.path.realpath(path)
    return any(os.path.commonpath((real, folder)) == folder for folder in map(os.path.realpath, folders))


def _named(job: JobSpec) -> tuple[Path, ...]:
    """The output folders that the job's arguments name."""
    pairs = zip(_outputs(job), job.outputs, strict=True)
    return tuple(path for path, name in pairs if name not in USUAL_OUTPUTS)


def seen_file(job: JobSpec, state: RunState) -> str | None:
    """The newest file of this run that is named like a checkpoint, as a clause for a person; None where none is known.

    Its completeness cannot be seen from outside, so nothing but a person's eye may use it. Looks for at most `SEEN_FILE_S`.
    """
    began_t = state.attempts[0].planned_t if state.attempts else None
    if began_t is None or state.checkpoint is not None or job.knobs.resume is not None:
        return None
    folders = dict.fromkeys([*map(_folder, _outputs(job)), Path(job.cwd)])
    found = within(
        SEEN_FILE_S, lambda: newest_like_checkpoint(folders, began_t - SETTLE_S), "stoker-checkpoint-files"
    )
    if found is None:
        return None
    name = os.path.relpath(found.path, job.cwd)
    shown = found.path if name.startswith("..") else name
    at = time.strftime("%H:%M", time.localtime(found.t))
    shown = shown if shown.isprintable() else ascii(shown)
    return f"{shown} was written at {at}; whether it is whole is not known"


def _outputs(job: JobSpec) -> tuple[Path, ...]:
    return tuple(Path(job.cwd, os.path.expanduser(folder)) for folder in job.outputs)


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


class FoundCheckpoints:
    """Follows one attempt after the other. Used by the keeper's one thread.

    Looks in the folders that the script's arguments name; where they name none, in the usual folders and the script's own.

    Args:
        job: what runs.
        clock: its wall time is the run's.
        emit: journals a fact.
        series: the samples of this node, which say the step at a time; None: no step is known by time.
        others: the runs that trained since a time (wall seconds): what one of them may have written is not taken as this run's.
    """

    def __init__(
        self,
        job: JobSpec,
        clock: Clock,
        emit: Callable[[ev.Event], None],
        series: Path | None = None,
        others: Callable[[float], Sequence[ConcurrentRun]] = lambda _since_t: (),
    ) -> None:
        self._named, self._others = _named(job), others
        self._shared_with: str | None = None
        self._took_s = 0.0
        self._warned = False
        self._folders = self._named or _outputs(job)
        self._own = None if self._named else Path(job.cwd)
        self._ranks = ranks_of(job)
        self._clock, self._emit, self._series = clock, emit, series
        self._looker: Background[list[FoundCheckpoint]] = Background("stoker-checkpoints")
        self._journalled: set[tuple[str, int | None, float]] = set()
        self._taken: dict[str, float] = {}  # path to when it was journalled last
        self._next_look = clock.mono() + LOOK_EVERY_S

    def look(self, state: RunState) -> None:
        """Called at each tick: begins a look every few seconds, and journals what the last one found."""
        self._take(self._looker.poll(), state)
        now = self._clock.mono()
        if now >= self._next_look and self._begin(state):
            self._next_look = now + min(max(self._took_s / LOOK_SHARE, LOOK_EVERY_S), LOOK_EVERY_MOST_S)

    def finish(self, state: RunState) -> None:
        """The attempt has ended: what it left decides how the next one starts."""
        self._taken.clear()
        if self._looker.busy:  # it began before the end
            self._take(self._looker.poll(LAST_LOOK_S), state)
        if not self._begin(state):
            return
        self._taken.clear()
        self._take(self._looker.poll(LAST_LOOK_S), state)

    def close(self) -> None:
        """Wait a little for a look that is under way."""
        self._looker.close(CLOSE_S)

    def _begin(self, state: RunState) -> bool:
        began_t = state.attempts[0].planned_t if state.attempts else None
        reported = any(not found.found for found in state.checkpoints)
        if began_t is None or reported or not self._folders or self._looker.busy:
            return False
        # Files bear the machine's time: where its clock was set back, they look older than they are.
        since_t = began_t - SETTLE_S + min(self._clock.ahead_s(), 0.0)
        self._looker.start(lambda: self._find(since_t))
        return True

    def _find(self, since_t: float) -> list[FoundCheckpoint]:
        """In the looker's thread."""
        began_s = time.perf_counter()
        found = find_checkpoints(self._folders, since_t, ranks=self._ranks)
        if not found and self._own is not None:
            found = find_checkpoints([self._own], since_t, ranks=self._ranks, depth=OWN_FOLDER_DEPTH)
        others = self._others(since_t) if found else ()
        ours = [one for one in found if self._is_ours(one.path, others)]
        self._took_s = time.perf_counter() - began_s
        return ours

    def _is_ours(self, path: str, others: Sequence[ConcurrentRun]) -> bool:
        """Whether no other run may have written it: who names a folder owns it, before who only works there."""
        named = _is_below(path, self._named)
        for other in others:
            if not other.writes(path) or (named and not other.named):
                continue
            if named or not other.named:
                self._shared_with = other.name
            return False
        return True

    def _take(self, found: list[FoundCheckpoint] | None, state: RunState) -> None:
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
            (one.path, one.step if not one.step_by_time else None, one.written_t) for one in state.checkpoints
        } | self._journalled
        by_path = {one.path for one in state.checkpoints if one.written_t is None}
        # An adopting keeper, or one that left out an attempt, journals what was written while nobody looked.
        new = [one for one in found if one.path not in by_path and (one.path, one.step, one.t) not in known]
        steps = self._steps_seen() if any(one.step is None for one in new) else []
        now = self._clock.mono()
        for one in new:
            # A file that is kept up to date is written again and again: once a minute is enough to know where a restart would begin.
            if now - self._taken.get(one.path, float("-inf")) < LOOK_EVERY_MOST_S:
                continue
            self._taken[one.path] = now
            self._journalled.add((one.path, one.step, one.t))
            step = one.step
            if step is None:
                written_t = one.t - self._clock.ahead_s()
                step = int(next((n for t, n in reversed(steps) if t <= written_t), view.last_step or 0))
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
                    step_by_time=one.step is None,
                )
            )

    def _steps_seen(self) -> list[tuple[float, float]]:
        """Wall time and step of the newest samples that name a step, in the order in which they came."""
        if self._series is None:
            return []
        reader = SeriesReader(self._series, METRICS)
        reader.seek_tail(STEPS_TAIL_BYTES)
        samples = chain.from_iterable(iter(reader.read, []))
        return [(sample.t, step) for sample in samples if (step := sample.v.get("step")) is not None]
