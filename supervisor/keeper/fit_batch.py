"""Implements ``--fit-batch``, which runs short launches before the first attempt to find the largest micro-batch that fits.

Bisects the n micro-batches that keep the global batch exact, so at most ceil(log2(n + 1)) probes are needed.
Each probe is a trial with its own journal in ``probes/<n>``. Its result goes into the run's journal, so a keeper
that adopts the run continues where the dead one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from supervisor.job.arguments.command_line import set_value
from supervisor.job.batch import BatchSpec, candidates, describe, with_micro_batch
from supervisor.job.errors import JobError
from supervisor.job.knobs.set_batch import why_not_changeable
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import (
    LEAST_FIT_STEPS,
    EntryKind,
    FitSettings,
    HangSettings,
    TrialSettings,
    steps_seen,
)
from supervisor.keeper.attempt_monitor import AttemptMonitor
from supervisor.keeper.base.ledger import Ledger, RunContext
from supervisor.keeper.planning.attempt_evidence import diagnose_attempt, remember_trial
from supervisor.keeper.planning.launch_plans import Launching, StillAlive
from supervisor.keeper.process.child import end_all
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.records import OUT_OF_MEMORY, FailureClass
from supervisor.sources.signature_files import EngineLoader

# A probe has no work to lose. A script that saves on SIGTERM would write over checkpoints of the run's own folder.
GRACE_S = 0.0
# The first probe may fail for a reason other than memory. A second probe shows whether the reason persists.
MAX_OTHER_FAILURES = 2


def next_probe(open_: Sequence[int], probes: Sequence[ev.ProbeEnded]) -> int | None:
    """Return the micro-batch to try next, or None once the answer is known.

    Args:
        open_: the micro-batches that could be used, in any order.
        probes: the probes so far.
    """
    fits = max((p.micro_batch for p in probes if p.fitted), default=0)
    fails = min((p.micro_batch for p in probes if p.fitted is False), default=None)
    left = sorted(m for m in open_ if m > fits and (fails is None or m < fails))
    return left[len(left) // 2] if left else None


class Prober:
    """Runs the probes. Each keeper has one and uses it only in its single thread. Call `tick` until it returns True."""

    def __init__(self, context: RunContext, engine: EngineLoader) -> None:
        self._context, self._record, self._engine = context, context.record, engine
        self._clock, self._emit = context.clock, context.ledger.emit
        self._fit = context.record.job.fit or FitSettings()
        self._live: tuple[RunContext, AttemptMonitor] | None = None

    def tick(self, state: st.RunState) -> bool:
        """Continue probing. Return True once the first attempt may launch."""
        job = self._record.job
        if job.fit is None or state.fitted is not None:
            return True
        if state.probing is not None:
            probing = state.probing
            if self._live is not None or self._begin(probing.probe, probing.micro_batch):
                self._watch(probing.probe, probing.micro_batch)
            return False
        if job.batch is None or not job.knobs.can_change_batch:
            why = "the batch is not known" if job.knobs.can_change_batch else why_not_changeable(job.knobs)
            self._done(state, None, f"the batch cannot be changed, so nothing was probed: {why}")
            return True
        if sum(p.fitted is None for p in state.probes) >= MAX_OTHER_FAILURES:
            self._done(state, None, f"probes failed for another reason than memory: {state.probes[-1].why}")
            return True
        allowed = [m for m in candidates(job.batch) if m >= job.retry.min_micro_batch]
        micro = next_probe(allowed, state.probes)
        if micro is None:
            self._settle(state, job.batch)
            return True
        if self._begin(number := len(state.probes) + 1, micro) and self._live is not None:
            argv, now = self._live[0].ledger.state.attempts[-1].argv, self._clock.wall()
            self._emit(ev.ProbeStarted(t=now, probe=number, micro_batch=micro, argv=argv))
        return False

    def stop(self) -> None:
        """Stop a live probe immediately and release its files."""
        if self._live is not None:
            context, _ = self._live
            end_all(context.mark, context.node.attempt(1))
            self._close()

    def _watch(self, number: int, micro: int) -> None:
        assert self._live is not None, "it has begun"
        context, monitor = self._live
        if monitor.is_active:
            monitor.receive(0.0)
            monitor.write()
            monitor.look()
        else:
            self._judge(number, micro, context)

    def _begin(self, number: int, micro: int) -> bool:
        """Start a probe, or take over one left behind by a dead keeper. Return False if that fails."""
        try:
            self._live = self._begun(number, micro)
        except (JobError, OSError, StillAlive) as error:
            self._over(number, micro, None, f"could not be planned: {error}")
        return self._live is not None

    def _begun(self, number: int, micro: int) -> tuple[RunContext, AttemptMonitor]:
        outer, job = self._context, self._record.job
        run = RunPaths(outer.node.root / "probes" / str(number))
        make_private(run.root)
        args = job.entry_args
        if job.entry_kind is EntryKind.TRAINER:  # the trainer's checkpoints stay in the probe's folder
            args = set_value(args, "--checkpoint_dir", str(run.root / "checkpoints"))
        probe = replace(
            job,
            fit=None,
            entry_args=args,
            trial=TrialSettings(steps=self._fit.steps, timeout_s=self._fit.timeout_s),
            timing=replace(job.timing, grace_s=GRACE_S),
            hang=HangSettings(enabled=False),
        )
        ledger = Ledger(outer.node.probe(number), outer.ledger.redactor)
        record = structs.replace(self._record, job=probe)
        context = replace(
            outer, run=run, node=outer.node.probe(number), record=record, ledger=ledger, others=()
        )
        monitor = AttemptMonitor(context, self._engine)
        if isinstance(ledger.state.condition, st.Launching | st.Running | st.Stopping):
            monitor.adopt()
        elif job.batch is not None and not ledger.state.attempts:
            batch = with_micro_batch(job.batch, micro)
            ledger.emit(ev.BatchFitted(t=self._clock.wall(), probes=0, batch=batch, text=""))
            child = Launching(context).launch("probe")
            if child is not None:
                monitor.follow(child, 1)
        return context, monitor

    def _judge(self, number: int, micro: int, context: RunContext) -> None:
        state, fit = context.ledger.state, self._fit
        view = state.attempts[-1]
        steps = steps_seen(view.first_step, view.last_step)
        fitted: bool | None = True
        why = "fits"
        if view.stop is not None and steps < fit.steps:
            fitted = True if steps >= LEAST_FIT_STEPS else None
            limit = f"{fit.timeout_s:.0f} s"
            why = f"fits: {steps} steps in {limit}" if fitted else f"made no {fit.steps} steps in {limit}"
        elif steps < fit.steps and not (view.exit_code == 0 and self._record.job.has_own_code):
            verdict = view.verdict if isinstance(state.condition, st.DiagnosedAs) else None
            verdict = verdict or diagnose_attempt(context, view.number, self._engine.get())
            if verdict.failure in OUT_OF_MEMORY:
                fitted, why = False, f"does not fit ({verdict.failure.value})"
            elif view.exit_code != 0 or verdict.failure is not FailureClass.HEALTHY:
                fitted, why = None, f"ended with {verdict.failure.value}: {verdict.title}"
        took_s = (view.ended_t or self._clock.wall()) - view.planned_t
        self._over(number, micro, fitted, why, took_s=took_s, steps=steps)

    def _close(self) -> None:
        if self._live is not None:
            context, monitor = self._live
            monitor.close()
            context.ledger.close()
        self._live = None

    def _over(
        self, number: int, micro: int, fitted: bool | None, why: str, *, took_s: float = 0.0, steps: int = 0
    ) -> None:
        self._close()
        now, took_s = self._clock.wall(), round(took_s, 2)
        self._emit(
            ev.ProbeEnded(
                t=now, probe=number, micro_batch=micro, fitted=fitted, why=why, took_s=took_s, steps=steps
            )
        )

    def _settle(self, state: st.RunState, batch: BatchSpec) -> None:
        """Choose the largest micro-batch that fits and remember all trials for later runs."""
        for probe in state.probes:
            if probe.fitted is not None:
                trial = MemoryTrial(probe.micro_batch, fitted=probe.fitted)
                remember_trial(self._record.job, state, trial, self._context.env, self._clock.wall())
        fits = max((p.micro_batch for p in state.probes if p.fitted), default=None)
        if fits is None:
            self._done(state, None, "not even the smallest micro-batch fits; starting as asked for")
            return
        found = with_micro_batch(batch, fits)
        self._done(state, found, f"micro-batch {fits} is the largest that fits: {describe(found)}")

    def _done(self, state: st.RunState, batch: BatchSpec | None, text: str) -> None:
        probes = len(state.probes)
        took_s = sum(p.took_s for p in state.probes)
        text = f"{text} ({probes} probe{'s' if probes != 1 else ''}, {took_s:.0f} s)" if probes else text
        self._emit(ev.BatchFitted(t=self._clock.wall(), probes=probes, batch=batch, text=text))
