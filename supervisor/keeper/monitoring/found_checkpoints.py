"""Checkpoints of a script that tells of none: looked for in its folders beside the loop, and journalled when they are whole."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from supervisor.job.spec import JobSpec
from supervisor.keeper.background import Background, within
from supervisor.keeper.clock import Clock
from supervisor.run import events as ev
from supervisor.run.state import RunState
from supervisor.sources.checkpoints import (
    LIKE_CHECKPOINTS,
    FoundCheckpoint,
    find_checkpoints,
    newest_like_checkpoint,
)

LOOK_EVERY_S = 60.0
LAST_LOOK_S = 2.0
"""How long the end of an attempt waits for a file server; the next launch then goes without."""
SETTLE_S = 1.0
"""File systems stamp in steps of up to a second, and an attempt's own start is ours."""


def seen_file(job: JobSpec, state: RunState) -> str | None:
    """The newest file of this run that is named like a checkpoint, as a clause for a person; None where none is known.

    Its completeness cannot be seen from outside, so nothing but a person's eye may use it. Looks for at most `LAST_LOOK_S`.
    """
    began_t = state.attempts[0].planned_t if state.attempts else None
    if began_t is None or state.checkpoint is not None or job.knobs.resume is not None:
        return None
    folders = dict.fromkeys([*map(_folder, _outputs(job)), Path(job.cwd)])
    found = within(
        LAST_LOOK_S, lambda: newest_like_checkpoint(folders, began_t - SETTLE_S), "stoker-checkpoint-files"
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


def _folder(reported: Path) -> Path:
    """A flag for the output may name the file itself."""
    return reported.parent if reported.name.lower().endswith(LIKE_CHECKPOINTS) else reported


class FoundCheckpoints:
    """Follows one attempt after the other. Used by the keeper's one thread."""

    def __init__(self, job: JobSpec, clock: Clock, emit: Callable[[ev.Event], None]) -> None:
        self._folders = _outputs(job)
        self._clock, self._emit = clock, emit
        self._looker: Background[list[FoundCheckpoint]] = Background("stoker-checkpoints")
        self._next_look = clock.mono() + LOOK_EVERY_S

    def look(self, state: RunState) -> None:
        """Called at each tick: begins a look once a minute, and journals what the last one found."""
        self._take(self._looker.poll(), state)
        now = self._clock.mono()
        if now >= self._next_look and self._begin(state):
            self._next_look = now + LOOK_EVERY_S

    def finish(self, state: RunState) -> None:
        """The attempt has ended: what it left decides how the next one starts."""
        if not self._looker.busy and not self._begin(state):
            return
        self._take(self._looker.poll(LAST_LOOK_S), state)

    def close(self) -> None:
        """Wait a little for a look that is under way."""
        self._looker.close(LAST_LOOK_S)

    def _begin(self, state: RunState) -> bool:
        began_t = state.attempts[0].planned_t if state.attempts else None
        reported = any(not found.found for found in state.checkpoints)
        if began_t is None or reported or not self._folders or self._looker.busy:
            return False
        # Files bear the machine's time: where its clock was set back, they look older than they are.
        since_t = began_t - SETTLE_S + min(self._clock.ahead_s(), 0.0)
        self._looker.start(lambda: find_checkpoints(self._folders, since_t))
        return True

    def _take(self, found: list[FoundCheckpoint] | None, state: RunState) -> None:
        view = state.attempt
        if not found or view is None:
            return
        known = {checkpoint.path for checkpoint in state.checkpoints}
        # An adopting keeper, or one that left out an attempt, journals what was written while nobody looked.
        for one in found:
            if one.path not in known:
                self._emit(
                    ev.CheckpointCommitted(
                        t=self._clock.wall(), attempt=view.number, step=one.step, path=one.path, found=True
                    )
                )
