"""``--fit-batch``: short launches before the first attempt, until the largest micro-batch that fits is known.

Bisection over the micro-batches that keep the global batch exact, so at most ceil(log2(n + 1)) probes for n of
them. The results are in the journal, so a keeper that adopts the run continues where the dead one stopped.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from supervisor.diagnosis.verdict import diagnose
from supervisor.job.arguments.command_line import set_value
from supervisor.job.batch import BatchSpec, candidates, describe, with_micro_batch
from supervisor.job.errors import JobError
from supervisor.job.knobs.set_batch import why_not_changeable
from supervisor.job.memory_fit import MemoryTrial
from supervisor.job.spec import LEAST_FIT_STEPS, EntryKind, FitSettings
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.monitoring.collector import Collector
from supervisor.keeper.monitoring.log_monitor import LastReading
from supervisor.keeper.monitoring.observations import Observation, StepSeen
from supervisor.keeper.planning import launch_plans as plans
from supervisor.keeper.planning.attempt_evidence import evidence_of, remember_trial
from supervisor.keeper.process.attempt import LiveAttempt
from supervisor.keeper.process.child import Child, SpawnError, adopt, kill_all, spawn
from supervisor.keeper.process.members import find_members
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.paths import AttemptPaths, NodePaths, RunPaths
from supervisor.run.records import OUT_OF_MEMORY, FailureClass
from supervisor.sources.processes import ProcessId
from supervisor.sources.signature_files import Engine
from supervisor.text.redact import redact_argv

# A probe has no work to lose, so its ranks get only this long to end.
GRACE_S = 5.0
# The first probe may fail for a reason other than memory; a second one shows whether it persists.
MAX_OTHER_FAILURES = 2


def next_probe(open_: Sequence[int], probes: Sequence[ev.ProbeEnded]) -> int | None:
    """The micro-batch to try next, or None when the answer is known.

    Args:
        open_: micro-batches that could be used, in any order.
        probes: what was tried.
    """
    fits = max((p.micro_batch for p in probes if p.fitted), default=0)
    fails = min((p.micro_batch for p in probes if p.fitted is False), default=None)
    left = sorted(m for m in open_ if m > fits and (fails is None or m < fails))
    return left[len(left) // 2] if left else None


class Prober:
    """One per keeper, used by its only thread: call `tick` until it returns True."""

    def __init__(self, context: RunContext, engine: Callable[[], Engine]) -> None:
        self._node, self._record, self._env = context.node, context.record, context.env
        self._clock, self._emit, self._engine = context.clock, context.ledger.emit, engine
        self._fit = context.record.job.fit or FitSettings()
        self._live: tuple[LiveAttempt, Collector] | None = None
        self._reading: LastReading | None = None
        self._queue: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._began = 0.0
        self._steps: set[float] = set()
        self._fits = False

    def tick(self, state: st.RunState) -> bool:
        """Continue probing; True once the first attempt may launch."""
        job = self._record.job
        if job.fit is None or state.fitted is not None:
            return True
        if self._live is not None:
            self._watch(state, *self._live)
            return False
        if state.probing is not None:  # a dead keeper left it: it is ended and repeated
            paths = self._paths(state.probing.probe)
            child = adopt(paths, self._home(paths))
            if child is not None:
                self._end(child)
            self._begin_count()
            self._over(state.probing.probe, state.probing.micro_batch, None, "its keeper died")
            return False
        if job.batch is None or not job.knobs.can_change_batch:
            why = "the batch is not known" if job.knobs.can_change_batch else why_not_changeable(job.knobs)
            self._done(state, None, f"the batch cannot be changed, so nothing was probed: {why}")
        elif sum(p.fitted is None for p in state.probes) >= MAX_OTHER_FAILURES:
            self._done(state, None, f"probes failed for another reason than memory: {state.probes[-1].why}")
        elif (
            micro := next_probe(
                [m for m in candidates(job.batch) if m >= job.retry.min_micro_batch], state.probes
            )
        ) is not None:
            self._begin(len(state.probes) + 1, with_micro_batch(job.batch, micro))
            return False
        else:
            self._settle(state, job.batch)
        return True

    def stop(self) -> None:
        """End a live probe at once and release its files."""
        if self._live is not None:
            self._end(self._live[0].child, self._live[0].alive())
        self._close()

    def _end(self, child: Child, known: Sequence[ProcessId] = ()) -> None:
        for _ in range(2):  # the second look finds processes that were forked during the first
            started, above = (*child.roots(), *known), [child.launcher]
            kill_all([*find_members(self._home(child.paths), started=started, launchers=above).ours])
        child.release()

    def _paths(self, probe: int) -> AttemptPaths:
        return AttemptPaths(self._node.root / "probes" / str(probe))

    def _home(self, paths: AttemptPaths) -> str:
        """The run directory that a probe's processes are given."""
        return str(paths.root / "run")

    def _begin_count(self) -> None:
        self._began, self._steps, self._fits = self._clock.mono(), set(), False

    def _begin(self, number: int, batch: BatchSpec) -> None:
        paths, job, micro = self._paths(number), self._record.job, batch.micro_batch_per_rank
        self._begin_count()
        record = self._record
        if job.entry_kind is EntryKind.TRAINER:  # its checkpoints stay in the probe's folder
            args = set_value(job.entry_args, "--checkpoint_dir", str(paths.root / "checkpoints"))
            record = msgspec.structs.replace(record, job=replace(job, entry_args=args))
        try:
            # A probe is the run's first launch in a folder of its own, which gets its checkpoints and telemetry.
            lab = st.RunState(fitted=ev.BatchFitted(t=0.0, probes=0, batch=batch, text=""))
            plan = plans.plan_next(record, lab, RunPaths(Path(self._home(paths))), paths, self._env)
            plans.write_plan(paths, plan)
        except (JobError, OSError) as error:
            self._over(number, micro, None, f"could not be planned: {error}")
            return
        argv = redact_argv(plan.argv)
        self._emit(ev.ProbeStarted(t=self._clock.wall(), probe=number, micro_batch=micro, argv=argv))
        try:
            child = spawn(plan, paths, self._env)
        except SpawnError as error:
            self._over(number, micro, None, str(error))
            return
        collector = Collector(
            paths,
            queue=self._queue,
            clock=self._clock,
            interval_s=record.settings.sample_interval_s,
            engine=self._engine,
            job=job,
        )
        home, ends = self._home(paths), collector.agent_is_ending
        live = LiveAttempt(number, child, run_dir=home, clock=self._clock, job=job, ends=ends)
        self._live = live, collector
        collector.start()

    def _watch(self, state: st.RunState, live: LiveAttempt, collector: Collector) -> None:
        for fact in live.watch():
            if isinstance(fact, ev.RankStarted):
                collector.add_rank(fact)
        collector.look()
        self._receive()
        if self._reading is not None or live.is_over():
            self._reading = self._reading or LastReading(collector.logs, self._clock)
            if self._fits or self._reading.look():
                self._judge(state, live)
            return
        enough = len(self._steps) >= self._fit.steps
        if (enough and not self._fits) or self._clock.mono() - self._began > self._fit.timeout_s:
            self._fits = self._fits or enough
            live.stop(ev.StopWhy.REQUEST, "--fit-batch", grace_s=GRACE_S, now=True)

    def _receive(self) -> None:
        while not self._queue.empty():
            seen = self._queue.get()
            if isinstance(seen, StepSeen) and "step" in seen.values:
                self._steps.add(seen.values["step"])

    def _judge(self, state: st.RunState, live: LiveAttempt) -> None:
        assert state.probing is not None, "a live probe is journalled"
        self._close()
        self._receive()
        number, micro, steps = state.probing.probe, state.probing.micro_batch, len(self._steps)
        code = live.exit.exit_code if live.exit is not None else None
        if self._fits or (code == 0 and self._record.job.has_own_code):
            self._over(number, micro, True, "fits")
        elif live.stop_sequence is not None:
            enough, limit = steps >= LEAST_FIT_STEPS, f"{self._fit.timeout_s:.0f} s"
            why = (
                f"fits: {steps} steps in {limit}" if enough else f"made no {self._fit.steps} steps in {limit}"
            )
            self._over(number, micro, enough or None, why)
        else:
            view = st.AttemptState(number=number, planned_t=0.0, exit_code=code, ended_t=self._clock.wall())
            folder, lab = NodePaths(self._paths(number).root), st.RunState(attempts=(view,))
            evidence = evidence_of(folder, view, lab, self._record.job, paths=live.paths)
            engine = self._engine()
            verdict = diagnose(evidence._replace(launcher_exit=code), engine.signatures, engine.matcher)
            if verdict.failure in OUT_OF_MEMORY:
                self._over(number, micro, False, f"does not fit ({verdict.failure.value})")
            elif code == 0 and verdict.failure is FailureClass.HEALTHY:
                self._over(number, micro, True, "fits")
            else:
                self._over(number, micro, None, f"ended with {verdict.failure.value}: {verdict.title}")

    def _close(self) -> None:
        if self._live is not None:
            self._live[1].stop()
        self._live = self._reading = None

    def _over(self, number: int, micro: int, fitted: bool | None, why: str) -> None:
        ended = ev.ProbeEnded(
            t=self._clock.wall(),
            probe=number,
            micro_batch=micro,
            fitted=fitted,
            why=why,
            took_s=round(self._clock.mono() - self._began, 2),
            steps=len(self._steps),
        )
        self._emit(ended)

    def _settle(self, state: st.RunState, batch: BatchSpec) -> None:
        """Take the largest micro-batch that fits, and remember all trials for later runs."""
        for probe in state.probes:
            if probe.fitted is not None:
                trial = MemoryTrial(probe.micro_batch, fitted=probe.fitted)
                remember_trial(self._record.job, state, trial, self._env, self._clock.wall())
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
