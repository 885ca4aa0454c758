"""What is reported and recorded about a failure: memory, what the restart changes, how long it took, and whether training continued the same."""

from __future__ import annotations

from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import FitSettings, steps_seen
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.planning import launch_plans as plans
from supervisor.keeper.planning.attempt_evidence import memory_point_of, remember_trial, trial_of
from supervisor.keeper.recording.resume_comparison import ResumeComparison
from supervisor.policy.health.early_signs import unexpected_memory
from supervisor.run import events as ev
from supervisor.run.answers import remember_unmeasured
from supervisor.run.failure_history import recovery_of
from supervisor.run.journal import facts_in
from supervisor.run.next_job import got_further, unmeasured_trial
from supervisor.run.state import AttemptState, RunState

BLAMED = "instrument_off"
LEAST_STEPS = FitSettings().steps
"""Caches and the last shapes of a compiled graph appear only some steps after the first."""


class RecoveryReport:
    """Called by the keeper's only thread; emits events."""

    def __init__(self, context: RunContext) -> None:
        self._run, self._node, self._record = context.run, context.node, context.record
        self._env, self._clock, self._emit = context.env, context.clock, context.ledger.emit
        self._told = 0
        self._blamed = any(advisory.code == BLAMED for advisory in context.ledger.state.advisories)
        self._comparison = ResumeComparison(context)

    def measure(self, state: RunState) -> None:
        """Record whether the newest attempt was the same training, and whether its micro-batch fit, for the next plan and for later runs."""
        self._comparison.look(state, final=True)
        self._say_blame(state)
        view = state.attempts[-1]
        trial = trial_of(self._node, view, view.shown_batch, memory_point_of(view, view.shown_batch))
        if trial is not None:
            now = self._clock.wall()
            self._emit(ev.MemoryMeasured(t=now, attempt=view.number, trial=trial))
            remember_trial(self._record.job, state, trial, self._env, now)
            self._compare_memory(view, trial)

    def _compare_memory(self, view: AttemptState, trial: MemoryTrial) -> None:
        """Report once per attempt if its memory is far from what the configuration expects."""
        job = self._record.job
        same = job.batch is not None and trial.micro_batch == job.batch.micro_batch_per_rank
        enough = trial.fitted and steps_seen(view.first_step, view.last_step) >= LEAST_STEPS
        if job.expected_memory_bytes is None or not same or not enough:
            return
        advice = unexpected_memory(trial, job.expected_memory_bytes)
        if advice is not None:
            told = ev.Advisory(t=self._clock.wall(), attempt=view.number, code=advice.code, text=advice.text)
            self._emit(told)

    def say_change(self, state: RunState) -> None:
        """Journal what the next launch changes, before it is made."""
        lines = plans.planned_change(self._record, state, self._run, self._node, self._env)
        if lines:
            number = state.attempts[-1].number
            self._emit(ev.ChangePlanned(t=self._clock.wall(), attempt=number, lines=lines))

    def look(self, state: RunState) -> None:
        """Called while an attempt runs, to report what its first steps show."""
        self.say_recovery(state)
        self._say_blame(state)
        self._comparison.look(state)

    def _say_blame(self, state: RunState) -> None:
        """If an attempt gets further without stoker's measurements, report it and start later runs of the script without them."""
        trial = unmeasured_trial(state)
        if self._blamed or trial is None or trial[1] is not state.attempt or not got_further(*trial):
            return
        self._blamed = True
        now, number = self._clock.wall(), trial[1].number
        text = f"without stoker's measurements it got further than attempt {trial[0].number}"
        try:
            remember_unmeasured(self._record.job, self._env, now)
        except OSError as error:
            text += f"; this could not be remembered ({error.strerror}): start it with --no-instrument"
        else:
            text += ": later runs of this script start without them (--instrument: with them)"
        self._emit(ev.Advisory(t=now, attempt=number, code=BLAMED, text=text))

    def say_recovery(self, state: RunState) -> None:
        """Once a restarted attempt has made a step, report how long it took since the failure, and where the time went."""
        view = state.attempt
        if view is None or view.number < 2 or view.first_step is None or view.recovery is not None:
            return
        if self._told == view.number:
            return
        self._told = view.number
        found = recovery_of(facts_in(self._node.journal), view.number)
        if found is not None:
            self._emit(found)
