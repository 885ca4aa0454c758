"""Whether a restarted attempt trains as planned: its first steps against the plan of its launch.

The saves of such an attempt wait for the file `CONFIRMED`, for at most 20 s (instrument/checkpoints.py), so that an attempt with another
batch, or without its checkpoint, is ended before it writes over one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from supervisor.job.batch import BatchSpec, factors
from supervisor.job.knobs.facts import Facts
from supervisor.job.knobs.measured import first_steps, is_named
from supervisor.job.knobs.resume_settings import resume_seen
from supervisor.job.spec import Unread
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.run import events as ev
from supervisor.run.answers import keep_answers
from supervisor.run.next_job import next_job
from supervisor.run.nodes import LEADER
from supervisor.run.paths import AttemptPaths
from supervisor.run.runfile import RunFile
from supervisor.run.state import AttemptState, RunState

CONFIRMED: Final = "confirmed"


class PlanCheck:
    """Compares each attempt after the first once. Used by the keeper's one thread."""

    def __init__(
        self, record: RunFile, emit: Callable[[ev.Event], None], clock: Clock, env: Mapping[str, str]
    ) -> None:
        self._record, self._emit, self._clock, self._env = record, emit, clock, env
        self._file: Path | None = None
        self._saved: set[str] = set()
        """Checkpoints that an earlier attempt was seen to save: loads of these are seen, too."""

    def begin(self, number: int, paths: AttemptPaths) -> None:
        """A new attempt."""
        self._file = paths.telemetry / CONFIRMED if number > 1 else None

    def look(self, facts: Facts, state: RunState) -> None:
        """Journal what the first steps show, once, and let the saves go on if all is as planned."""
        view = state.attempt
        if self._file is None or view is None or view.differs is not None:
            self._saved |= set(map(os.path.realpath, facts.saved))
            return
        planned, before = changed_batch(state, view), state.measured
        accumulates = before is not None and before.accumulation is not None
        micro, steps, agreed = first_steps(facts, accumulates=accumulates)
        if planned is not None and (other := _other(planned, facts, micro, agreed)) is not None:
            about, number, found = other
            why = _why(facts, self._knob(about, state), number)
            if about is Unread.MICRO and Unread.SCOPE in state.answers:
                about = Unread.SCOPE
            wrong = about if about in state.answers else None
            if wrong is not None:
                self._keep_answers(state, wrong=wrong)
            self._differ(view, factors(planned), found, why=why, wrong=wrong)
            return
        if not _have_stepped(facts):
            return
        if planned is not None and (micro is None or steps not in {None, planned.accumulation_steps}):
            return
        wanted = _wanted(state, view)
        resumed = next((path for path in wanted if resume_seen(facts, path, real=os.path.realpath)), None)
        if not facts.loaded and wanted & self._saved and self._record.node == LEADER:
            planned_resume = f"a resume from checkpoint {view.resume_at}"
            self._differ(view, planned_resume, "no checkpoint was loaded", of_resume=True)
            return
        if view.resume_at is None or resumed is not None:
            with contextlib.suppress(OSError):  # the saves wait for a while, and go on
                self._file.touch(mode=0o600)
            self._file = None
        if view.confirmed is None and (planned is not None or resumed is not None):
            if planned is not None:
                self._keep_answers(state)
            self._emit(
                ev.PlanConfirmed(
                    t=self._clock.wall(),
                    attempt=view.number,
                    planned=factors(planned) if planned is not None else "",
                    resume=resumed,
                )
            )

    def _keep_answers(self, state: RunState, *, wrong: Unread | None = None) -> None:
        with contextlib.suppress(OSError):  # they are tried or asked again, then
            keep_answers(state, self._env, self._clock.wall(), wrong=wrong)

    def _knob(self, about: Unread | None, state: RunState) -> str | None:
        """The setting that the plan gave a value; None: none is about that."""
        knobs = next_job(self._record.job, state).job.knobs
        if about is Unread.MICRO:
            return knobs.batch
        return knobs.accumulation if about is Unread.ACCUMULATION else None

    def _differ(
        self,
        view: AttemptState,
        planned: str,
        measured: str,
        *,
        why: str = "",
        wrong: Unread | None = None,
        of_resume: bool = False,
    ) -> None:
        self._file = None
        self._emit(
            ev.PlanDiffers(
                t=self._clock.wall(),
                attempt=view.number,
                planned=planned,
                measured=measured,
                why=why,
                wrong=wrong,
                of_resume=of_resume,
            )
        )


def changed_batch(state: RunState, view: AttemptState) -> BatchSpec | None:
    """The batch of the plan, if a restart changed it: what a convention says of an unchanged one may be wrong, and is no plan."""
    return view.batch if any(a.changes_batch for a in state.attempts if a.number < view.number) else None


def _have_stepped(facts: Facts) -> bool:
    """Whether each rank of this node has told of a complete step, and so of all that it loaded before."""
    first = next(iter(facts.ranks), None)
    wanted = (first.local_world_size or first.world_size or 1) if first is not None else 1
    return sum(rank.steps > 0 for rank in facts.ranks) >= wanted


def _other(
    planned: BatchSpec, facts: Facts, micro: int | None, agreed: int | None
) -> tuple[Unread | None, int, str] | None:
    """What was measured in place of the plan: what a setting makes of it, the number, and both in words. None while nothing contradicts it."""
    if micro is not None and micro != planned.micro_batch_per_rank:
        return Unread.MICRO, micro, f"micro-batch {micro}"
    if agreed is not None and agreed != planned.accumulation_steps:
        return Unread.ACCUMULATION, agreed, f"accumulation {agreed}"
    world = facts.world_size
    if planned.ranks_known and world is not None and world > planned.world_size:
        return None, world, f"{world} ranks"
    return None


def _why(facts: Facts, knob: str | None, number: int | None) -> str:
    """What has the measured value in place of the planned setting, if it shows."""
    if knob is None:
        return ""
    mine = [setting for setting in facts.seen if is_named(setting, knob)]
    other = next((s for s in mine if s.number == number and s.file is not None), None)
    if other is not None and other.file is not None:
        return f"{knob} is overridden by {os.path.basename(other.file)}"
    return f"{knob} does not make it" if mine else f"{knob} was not seen in the ranks"


def _wanted(state: RunState, view: AttemptState) -> set[str]:
    """The checkpoint to resume from, by its real path; empty if there is none."""
    wanted = {c.path for c in state.checkpoints if c.attempt < view.number and c.step == view.resume_at}
    return set(
        map(os.path.realpath, wanted | ({view.resume_copy} if view.resume_copy is not None else set()))
    )
