"""Reports on a failure and its restart: memory, changes, lost time, and whether the same training run continues."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from supervisor.job.spec import RESTARTS, FitSettings, steps_seen
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.monitoring.found_checkpoints import logged_steps, step_at
from supervisor.keeper.planning import launch_plans as plans
from supervisor.keeper.planning.attempt_evidence import memory_point_of, remember_trial, trial_of
from supervisor.policy.health.early_signs import unexpected_memory
from supervisor.policy.same_training import Restart, began_below, judge
from supervisor.run import events as ev
from supervisor.run.answers import remember_unmeasured
from supervisor.run.next_job import got_further, unmeasured_trial
from supervisor.run.node_files import LEADER
from supervisor.run.records import Sameness
from supervisor.run.series import JOB_KEY, METRICS, Sample, SeriesReader
from supervisor.run.state import AttemptState, RunState

BLAMED = "instrument_off"
LEAST_STEPS = FitSettings().steps
"""Minimum steps for judging memory. Caches and a compiled graph's last shapes appear only several steps after the first."""


class RecoveryReport:
    """Emits the events of a recovery. Called only by the keeper's thread."""

    def __init__(self, context: RunContext) -> None:
        self._context, self._record, self._node = context, context.record, context.node
        self._clock, self._emit = context.clock, context.ledger.emit
        self._told = 0
        self._blamed = any(advisory.code == BLAMED for advisory in context.ledger.state.advisories)
        self._comparison = ResumeComparison(context)

    def measure(self, state: RunState) -> None:
        """Record, for the next plan and later runs, whether the latest attempt continued the same training run and its batch fit."""
        self._comparison.look(state, final=True)
        self._say_blame(state)
        view, job, now = state.attempts[-1], self._record.job, self._clock.wall()
        trial = trial_of(self._node, view, view.shown_batch, memory_point_of(view, view.shown_batch))
        if trial is None:
            return
        self._emit(ev.MemoryMeasured(t=now, attempt=view.number, trial=trial))
        remember_trial(job, state, trial, self._context.env, now)
        # The memory used may be far from what the configuration expects.
        same = job.batch is not None and trial.micro_batch == job.batch.micro_batch_per_rank
        enough = trial.fitted and steps_seen(view.first_step, view.last_step) >= LEAST_STEPS
        if job.expected_memory_bytes is not None and same and enough:
            advice = unexpected_memory(trial, job.expected_memory_bytes)
            if advice is not None:
                self._context.advise(view.number, advice.code, advice.text)

    def say_change(self, state: RunState) -> None:
        """Before a launch, journal what it changes."""
        context = self._context
        lines = plans.planned_change(context.record, state, context.run, context.node, context.env)
        if lines:
            number = state.attempts[-1].number
            self._emit(ev.ChangePlanned(t=self._clock.wall(), attempt=number, lines=lines))

    def look(self, state: RunState) -> None:
        """Report what an attempt's first steps show. Called while the attempt is running."""
        view = state.attempt
        if view is not None and view.number > 1 and view.first_step is not None and self._told != view.number:
            self._told = view.number
            before, stepped_t = state.find(view.number - 1), view.first_step_t
            failed_t = before.failed_t if before is not None and view.recovery is None else None
            if failed_t is not None and stepped_t is not None:
                total_s = round(max(stepped_t - failed_t, 0.0), 3)
                number, now = view.number, self._clock.wall()
                self._emit(ev.Recovered(t=now, attempt=number, after=number - 1, total_s=total_s))
        self._say_blame(state)
        self._comparison.look(state)

    def _say_blame(self, state: RunState) -> None:
        """Report that an attempt gets further without stoker's measurements, and turn them off for later runs of the script."""
        trial = unmeasured_trial(state)
        if self._blamed or trial is None or trial[1] is not state.attempt or not got_further(*trial):
            return
        self._blamed = True
        text = f"without stoker's measurements it got further than attempt {trial[0].number}"
        try:
            remember_unmeasured(self._record.job, self._context.env, self._clock.wall())
        except OSError as error:
            text += f"; this could not be remembered ({error.strerror}): start it with --no-instrument"
        else:
            text += ": later runs of this script start without them (--instrument: with them)"
        self._context.advise(trial[1].number, BLAMED, text)


# -- whether the resumed attempt is the same training --------------------------------------------------

LOOK_EVERY_S: Final = 1.0
NEW_ROWS: Final = 20
"""The final comparison uses all steps that were trained twice, plus this many new ones."""
MOST_ROWS: Final = 80
"""For a long overlap, this many steps are enough."""
MOST_KEPT: Final = 6_000
"""How many of the latest steps of a long training run to keep, because they may be trained again."""
TAIL_BYTES: Final = 16 << 20
MOST_IN_A_SECOND: Final = 2_000
"""4 MiB hold about 20,000 samples, so a read that returns fewer than this has reached the end."""

MEASURED: Final = frozenset({"loss", "lr", "grad_norm"})
"""A step without any of these was not trained, or had none of its values logged."""


class ResumeComparison:
    """Judges each attempt in turn, starting with its first logged step. Called only by the keeper's thread."""

    def __init__(self, context: RunContext) -> None:
        self._node, self._record = context.node, context.record
        self._clock, self._emit = context.clock, context.ledger.emit
        self._tables: _Tables | None = None
        self._next_look = -math.inf

    def look(self, state: RunState, *, final: bool = False) -> None:
        """Judge the latest attempt once its log has enough steps. If `final`, no more will come."""
        view, now = state.attempt, self._clock.mono()
        if (
            view is None
            or view.number < 2
            or view.first_step is None
            or (now < self._next_look and not final)
        ):
            return
        known = view.compared
        is_decided = known is not None and known.result is not Sameness.UNKNOWN
        if view.missed is not None or view.differs is not None or (is_decided and not final):
            return
        self._next_look = now + LOOK_EVERY_S
        if self._tables is None or self._tables.attempt != view.number:
            self._tables = _Tables(self._node.series, view.number)
        tables = self._tables
        if tables.done or not tables.read(final=final) or not tables.before or not tables.after:
            tables.done = tables.done or final
            return
        if (began := self._began_below(state, view, tables)) is not None:
            planned, measured = f"a resume from checkpoint {view.resume_at}", f"began at step {began}"
            t, number = self._clock.wall(), view.number
            self._emit(
                ev.PlanDiffers(t=t, attempt=number, planned=planned, measured=measured, of_resume=True)
            )
            return  # this implies that the training differs
        rows, last = len(tables.after), max(tables.before)
        tables.done = final or rows >= MOST_ROWS or sum(step > last for step in tables.after) >= NEW_ROWS
        if not tables.done:
            return
        found = judge(tables.before, tables.after, self._restart(state, view, tables))
        is_known = known is not None and (known.result, known.difference) == (found.result, found.difference)
        if not is_known:
            self._emit(
                ev.ResumeCompared(
                    t=self._clock.wall(),
                    attempt=view.number,
                    result=found.result,
                    difference=found.difference,
                    text=found.text,
                )
            )

    def _began_below(self, state: RunState, view: AttemptState, tables: _Tables) -> int | None:
        """Return the step at which an attempt began without loading a checkpoint, if it is below the checkpoint's step.

        Reported once per run. A user who then restarts the run knows that the script counts its steps from 0.
        """
        at, job = view.resume_at, state.answered_job(self._record.job)
        loaded = view.resumed_step is not None or (view.confirmed is not None and view.confirmed.resume)
        found = any(a.missed or (a.differs is not None and a.differs.of_resume) for a in state.attempts)
        counts_again = tables.falls or job.retry.step_counter == RESTARTS
        if at is None or loaded or found or counts_again or self._record.node != LEADER:
            return None
        # The checkpoint's name may use another count than the log, so use the log's step at the time of the save.
        written = [c.written_t or c.t for c in state.checkpoints if c.step == at and c.attempt < view.number]
        seen = step_at(max(written), logged_steps(self._node.series)) if written else None
        reached = seen if seen is not None else max(tables.before)
        began = began_below(tables.before, tables.after, min(at, reached + 1))
        # A script that finds its own checkpoint may fall back to an older one.
        finds_own = job.knobs.self_resuming or job.knobs.resume is not None
        return None if began and finds_own else began

    def _restart(self, state: RunState, view: AttemptState, tables: _Tables) -> Restart:
        """Return what is known about the restart that began the attempt."""
        earlier = [a for a in state.attempts if a.number < view.number and a.first_step is not None]
        before = earlier[-1] if earlier else None
        saved = next((c for c in reversed(state.checkpoints) if c.attempt < view.number), None)
        old, new = before.shown_batch if before is not None else None, view.shown_batch
        decision = before.decision if before is not None else None
        change = decision.change if decision is not None else None
        from_scratch = change is not None and change.from_scratch
        instructed = view.resume is not None or state.answered_job(self._record.job).knobs.self_resuming
        return Restart(
            resumes_at=view.resumed_step if view.resumed_step is not None else saved.step if saved else None,
            expected=instructed and not from_scratch,
            accumulates_otherwise=bool(old and new and old.accumulation_steps != new.accumulation_steps),
            total_steps=tables.totals,
        )


class _Tables:
    """The logged steps of an attempt and of earlier ones. If several earlier attempts trained a step, the latest one counts."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self.attempt, self.done = attempt, False
        self.before: dict[int, dict[str, float]] = {}
        self.after: dict[int, dict[str, float]] = {}
        self._totals: dict[bool, int] = {}
        # Whether the step fell within an earlier attempt; the newest earlier attempt's number and last step.
        self.falls, self._last = False, (0, 0.0)
        self._reader = SeriesReader(folder, METRICS)
        self._reader.seek_tail(TAIL_BYTES)

    @property
    def totals(self) -> tuple[int, int] | None:
        """The total number of steps that the script reports, before and after the restart."""
        old, new = self._totals.get(False), self._totals.get(True)
        return (old, new) if old is not None and new is not None else None

    def read(self, *, final: bool) -> bool:
        """Read what was logged since the last call, at most 4 MiB unless `final`. Return True once there is nothing more."""
        while samples := self._reader.read():
            self._take(samples)
            if not final:
                return len(samples) < MOST_IN_A_SECOND
        return True

    def _take(self, samples: list[Sample]) -> None:
        for sample in samples:
            step = sample.v.get("step")
            if sample.k != JOB_KEY or sample.a > self.attempt or step is None or not 0 <= step < math.inf:
                continue
            mine = sample.a == self.attempt
            values = {n: v for n, v in sample.v.items() if v is not None and n != "step"}
            if "total_steps" in values:
                self._totals[mine] = int(values["total_steps"])
            if MEASURED.isdisjoint(values):
                continue  # tqdm draws 0/30 before it jumps to the resumed step
            (self.after if mine else self.before).setdefault(int(step), {}).update(values)
            if not mine:
                self.falls = self.falls or (self._last[0] == sample.a and step < self._last[1] / 2)
                self._last = sample.a, step
        if len(self.before) > 2 * MOST_KEPT:
            for step in sorted(self.before)[:-MOST_KEPT]:
                del self.before[step]
