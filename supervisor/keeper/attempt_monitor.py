"""Watches the current attempt, from first process to last, for the keeper that started or adopted it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.job.config.script_settings import is_plain_python
from supervisor.job.launch.oom_plan import RESUME_KNOB, missing_words, oom_notice
from supervisor.job.spec import EntryKind
from supervisor.keeper.base.background import BackgroundTask
from supervisor.keeper.base.control_input import Refused
from supervisor.keeper.base.ledger import RunContext
from supervisor.keeper.monitoring.collector import Collector
from supervisor.keeper.monitoring.found_checkpoints import FoundCheckpoints, concurrent_runs
from supervisor.keeper.monitoring.log_monitor import LastReading
from supervisor.keeper.monitoring.measured_facts import MeasuredFacts, PlanCheck
from supervisor.keeper.monitoring.observations import Observation, RankGone, Reported, is_telemetry, received
from supervisor.keeper.monitoring.rank_failures import RankFailures
from supervisor.keeper.planning.attempt_evidence import BackgroundVerdict, diagnose_attempt
from supervisor.keeper.planning.decisions import next_answer
from supervisor.keeper.planning.resume_points import can_go_on
from supervisor.keeper.process.attempt import LiveAttempt
from supervisor.keeper.process.child import Child, ExitStatus, adopt, end_all, read_exit, started
from supervisor.keeper.recording.recorder import Recorder
from supervisor.keeper.stalls.hang_watch import HangContext
from supervisor.keeper.stalls.health import Health
from supervisor.keeper.stalls.stack_rounds import Round, Targets
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.answers import batch_question, resume_question
from supervisor.run.control import Viewers
from supervisor.run.fold import fold
from supervisor.run.next_job import next_job
from supervisor.run.paths import AttemptPaths
from supervisor.run.records import FailureClass
from supervisor.sources.kernel_memory import memory_kills
from supervisor.sources.processes import is_alive
from supervisor.sources.signature_files import EngineLoader

PROVISIONAL_DELAY_S = 0.4
FAILING_DELAY_S = 0.05
"""Seconds to wait before a verdict, so the TUI shows the failed rank first."""
FAILING_S = 60.0
"""Seconds for which a failed rank explains a lack of progress. torchrun stops the rest within 30 s, and the keeper sooner."""
HURRIED_DRAIN_S = 0.2
"""If reading takes longer, the keeper journals the exit and a provisional verdict, so a failure is explained within 1 s."""
CUT_S, LOOK_S = 1.0, 0.005
"""During an urgent stop, logs are read for at most `CUT_S` more seconds, which is usually enough to reach the end."""
SIGNAL_READ_S = 10.0
"""Limit on reading logs after a signal. The outcome must be saved before the sender kills us (SLURM's KillWait is 30 s)."""
MOST_FORETOLD = 3
ADOPT_WAIT_S = 2.0
"""Seconds an adopting keeper waits for a launcher that a dead keeper may have just started."""


VAGUE = frozenset((FailureClass.HEALTHY, FailureClass.UNKNOWN, FailureClass.TERMINATED))


@dataclass(frozen=True, slots=True)
class _Ending:
    """An attempt whose processes have exited but whose logs are still being read."""

    number: int
    exit: ExitStatus
    reading: LastReading


class AttemptMonitor:
    """Runs the sensors, health checks and stop sequence of one attempt after another, in the keeper's thread.

    Args:
        saved: called at each new checkpoint, when copies of the checkpoint that was resumed from can be removed.
        stepped: called at each check, to report what the first step shows about the recovery.

    Attributes:
        judging: reaches the verdict on an attempt from its logs so far.
    """

    def __init__(
        self,
        context: RunContext,
        engine: EngineLoader,
        *,
        stepped: Callable[[st.RunState], None] = lambda _state: None,
        saved: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._node = context.run, context.node
        self._record, self._env = context.record, context.env
        self._mark = context.mark
        self._clock, self._ledger, self._engine = context.clock, context.ledger, engine
        self._stepped, self._saved = stepped, saved
        self.judging = BackgroundVerdict(
            lambda number, whole: diagnose_attempt(context, number, engine.get(), whole=whole)
        )
        self._queue: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._plan_check = PlanCheck(context.record, context.ledger.emit, context.clock, context.env)
        self._measured = MeasuredFacts(context.ledger.emit, self._take, context.clock, self._plan_check)
        self._found = FoundCheckpoints(
            context.record.job,
            context.clock,
            context.ledger.emit,
            context.node.series,
            lambda since_t: concurrent_runs(context.run, since_t, context.env),
            self._measured,
        )
        self._recorder = Recorder(
            context.node.series,
            context.ledger.emit,
            context.clock,
            lambda: self._collector.logs.backlog() if self._collector is not None else None,
            redact=context.ledger.redactor.text,
            apart_s=lambda: context.ledger.apart_s,
        )
        self._viewers = Viewers(context.run.control)
        self._health = Health(
            context.node,
            context.record.job.hang,
            context.ledger.emit,
            context.clock,
            self._stack_targets,
            around=HangContext(
                watched=self.is_watched,
                can_resume=self._can_resume,
                group_timeout_s=lambda: self._measured.group_timeout_s,
            ),
            total_steps=context.record.job.total_steps,
        )
        self._live: LiveAttempt | None = None
        self._ending: _Ending | None = None
        self._collector: Collector | None = None
        self._failures = RankFailures(context.clock)
        self._provisional_at: dict[bool, float] = {}
        self._kills_before: int | None = None
        self._newest: ev.CheckpointCommitted | None = None
        self._foretold: tuple[ev.BatchMeasured | None, object, bool] | None = None
        self._number = 0
        self._same_boot = context.same_boot

    @property
    def is_active(self) -> bool:
        """Whether there is an attempt to watch, either running or with logs still being read."""
        return self._live is not None or self._ending is not None

    @property
    def is_stoppable(self) -> bool:
        """Whether a running attempt can be stopped."""
        return self._live is not None and self._ending is None and not self._live.ended_well()

    @property
    def is_draining_logs(self) -> bool:
        """Whether the processes have exited and their logs are still being drained."""
        return self._ending is not None

    @property
    def is_about_to_end(self) -> bool:
        """Whether a rank died or may be dying. torchrun is then about to exit, so any wait delays the next launch."""
        live, collector = self._live, self._collector
        if live is None or collector is None or live.stop_sequence is not None:
            return False
        return self._failing_is_new() or collector.agent_is_ending()

    def is_watched(self) -> bool:
        """Check whether anyone is viewing this run."""
        now = self._clock.mono()
        self._viewers.look(now)
        return self._viewers.watched(now)

    def receive(self, timeout_s: float) -> None:
        """Record what the sensors saw, waiting up to `timeout_s` seconds for the first observation."""
        for seen in received(self._queue, self._clock, timeout_s):
            self._observe(seen)

    def write(self) -> None:
        """Let the recorder write whatever is due."""
        self._recorder.tick()

    def close(self) -> None:
        """Stop the sensors. The attempt itself keeps running."""
        if self._collector is not None:
            self._collector.stop()
            self._collector = None
        self._recorder.close()
        self._health.close()
        self._found.close()

    def _observe(self, observation: Observation) -> None:
        live = self._live
        if self._collector is None:
            return
        if live is not None:
            if (
                live.stop_sequence is not None
                and isinstance(observation, Reported)
                and isinstance(observation.event, ev.EvidenceSeen)
                and observation.event.failure is FailureClass.TERMINATED
                and observation.stop_signal
            ):
                return  # an echo of the keeper's own SIGTERM, which the journal already has
            live.sends_telemetry = live.sends_telemetry or is_telemetry(observation)
            if isinstance(observation, RankGone) and observation.exit_code is not None:
                live.exit_codes[observation.local_rank] = observation.exit_code
            self._failures.observe(observation)
        self._found.hear(observation)
        self._take(self._measured.hear(observation))

    def _take(self, observation: Observation) -> None:
        self._recorder.record(observation)
        self._health.observe(observation)

    # -- its beginning ---------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over an attempt from an earlier keeper, whether it is running, has ended, or was only planned."""
        state = self._ledger.state
        view = state.attempt
        assert view is not None, "a launched condition has an attempt"
        if not self._same_boot:
            # The machine was rebooted, so the attempt has no processes. Its pids may be reused.
            status = read_exit(self._node.attempt(view.number))
            self._ended(view.number, status or ExitStatus(None))
            return
        launching = isinstance(state.condition, st.Launching)
        wait_s = ADOPT_WAIT_S if launching else 0.0
        child = adopt(self._node.attempt(view.number), self._mark, wait_s=wait_s)
        if child is None:
            if launching:
                end_all(self._mark, self._node.attempt(view.number))
            self._ended(view.number, ExitStatus(None))
            return
        if launching:
            self._ledger.emit(started(child, view.number, self._clock.wall()))
        self.follow(child, view.number, adopted=self._ledger.state)
        assert self._live is not None
        assert self._collector is not None
        self._live.know(view)
        self._collector.know(view)
        if view.stop is not None and view.ended_t is None:
            self._live.stop(view.stop.why, view.stop.by, grace_s=view.stop.grace_s)

    def _ended(self, number: int, status: ExitStatus) -> None:
        """Read the logs of a finished attempt that an earlier keeper started."""
        state = self._ledger.state
        if isinstance(state.condition, st.Launching) or state.attempt is None:  # nothing may have run
            self._ledger.emit(
                ev.AttemptEnded(t=self._clock.wall(), attempt=number, exit_code=status.exit_code)
            )
            return
        collector = self._sense(self._node.attempt(number), number, adopted=state)
        collector.know(state.attempt)
        self._begin_end(number, status, collector)

    def _sense(self, paths: AttemptPaths, number: int, *, adopted: st.RunState | None) -> Collector:
        self._number = number
        self._engine.begin()  # not earlier: a run without a launch needs no compile
        self._collector = Collector(
            paths,
            queue=self._queue,
            clock=self._clock,
            interval_s=self._record.settings.sample_interval_s,
            engine=self._engine.get,
            engine_ready=lambda: self._engine.ready,
            job=self._record.job,
        )
        self._recorder.begin(number, adopted=adopted)
        self._measured.begin(number, next_job(self._record.job, self._ledger.state).job, adopted=adopted)
        self._plan_check.begin(number, paths)
        self._collector.start()
        return self._collector

    def follow(self, child: Child, number: int, *, adopted: st.RunState | None = None) -> None:
        """Watch a command that was just started, or one that was `adopted` in the given state."""
        collector = self._sense(child.paths, number, adopted=adopted)
        job = next_job(self._record.job, self._ledger.state).job
        ends = collector.agent_is_ending
        self._live = LiveAttempt(number, child, run_dir=self._mark, clock=self._clock, job=job, ends=ends)
        # An earlier keeper's count cannot be continued, because the control group may be another one now.
        self._kills_before = memory_kills() if adopted is None else None
        self._health.begin(number, adopted=adopted)
        self._failures.begin()
        self._provisional_at = {}

    # -- while it is running ----------------------------------------------------------------------

    def look(self) -> None:
        """Run one round of checks: journal anything new, and end the attempt if it hangs or has exited."""
        if self._ending is not None:
            self._read_out(self._ending)
            return
        live, collector = self._live, self._collector
        assert live is not None, "looked at only while it lives"
        assert collector is not None, "a live attempt has its sensors"
        for fact in live.watch():
            self._ledger.emit(fact, durable=isinstance(fact, ev.StopIntended))
            if isinstance(fact, ev.RankStarted):
                collector.add_rank(fact)
        running, view = live.stop_sequence is None and live.exit is None, self._ledger.state.attempt
        if running and view is not None and (failing := self._failures.look(view)) is not None:
            self._ledger.emit(failing)
        collector.look()
        self._measured.look(self._ledger.state)
        self._foretell()
        self._stepped(self._ledger.state)
        self._found.look(self._ledger.state)
        self._drop_copies()
        view = self._ledger.state.attempt
        if live.is_over():
            self._begin_end(live.number, live.exit or ExitStatus(None), collector)
        elif collector.agent_is_ending() and live.stop_sequence is None:
            self._give_provisional(live.number, PROVISIONAL_DELAY_S)
        elif running and self._trial_is_over():
            grace_s = self._record.job.timing.grace_s
            self.stop(ev.StopWhy.TRIAL, "--trial", grace_s=grace_s, now=not grace_s)
        elif running and view is not None and view.differs is not None:
            self._end_now(ev.StopWhy.PLAN_DIFFERS)
        elif running and self._failing_is_new():
            self._give_provisional(live.number, FAILING_DELAY_S, rank_died=True)
        elif running and self._health.tick():
            self._end_now(ev.StopWhy.HANG)

    def _end_now(self, why: ev.StopWhy) -> None:
        """Stop without saving a checkpoint, because hung ranks don't respond and a save could overwrite one that was never loaded."""
        self.stop(why, "keeper", grace_s=self._record.job.timing.death_grace_s)

    def _foretell(self) -> None:
        """Report how an out-of-memory failure would be handled, as soon as the first steps reveal it and again if that changes."""
        state, job = self._ledger.state, self._record.job
        view = state.attempt
        if view is None or view.number > 1 or job.trial is not None:
            return
        known = view.measured, state.answers, bool(state.checkpoints)
        if self._foretold == known:
            return
        self._foretold = known
        said = [advisory.text for advisory in state.advisories if advisory.code.startswith(ev.ON_OOM)]
        if view.measured is None or not job.retry.enabled or len(said) >= MOST_FORETOLD:
            return
        now = self._clock.wall()
        if (answer := next_answer(self._record, state, self._env, now)) is not None:
            self._ledger.emit(answer)
            return  # reconsidered at the next tick
        waits, known_job = self._record.settings.interactive, state.answered_job(job)
        question = batch_question(job, state) if not known_job.knobs.can_change_batch else None
        if question is None and state.checkpoints and RESUME_KNOB in missing_words(known_job):
            question = resume_question(job, view.measured.resume_candidates)
        if waits and question is not None and (state.asked is None or state.asked.question != question):
            self._ledger.emit(ev.BatchAsked(t=now, attempt=1, question=question))
        tried = state
        tries: list[str] = []
        while (answer := next_answer(self._record, tried, self._env, now, tries=True)) is not None:
            tried, tries = fold(tried, answer), [*tries, answer.value]
        tried_job = tried.answered_job(job)
        if not tried_job.knobs.can_change_batch:
            tried_job, tries = known_job, []
        text, restarts = oom_notice(tried_job, waits=waits, tries=tries)
        if text not in said:
            code = f"{ev.ON_OOM}{'restarts' if restarts else 'ends'}"
            self._ledger.emit(ev.Advisory(t=now, attempt=1, code=code, text=text))

    def _failing_is_new(self) -> bool:
        """Check whether a rank failed so recently that its launcher has yet to kill the others."""
        view = self._ledger.state.attempt
        failing = view.failing if view is not None else None
        return failing is not None and self._clock.wall() - failing.t < FAILING_S

    def _trial_is_over(self) -> bool:
        """Check whether a trial has completed its steps or run out of time."""
        trial, view = self._record.job.trial, self._ledger.state.attempt
        if trial is None or view is None or view.started_t is None:
            return False
        age_s = self._clock.wall() - view.started_t
        return trial.is_over(view.first_step, view.last_step, age_s)

    def stop(self, why: ev.StopWhy, by: str, *, grace_s: float, now: bool = False) -> None:
        """Stop the attempt with the stop sequence. The intent is written to disk before the first signal."""
        assert self._live is not None, "stopped only while it lives"
        intent = self._live.stop(why, by, grace_s=grace_s, now=now)
        if intent is not None:
            self._ledger.emit(intent, durable=True)

    def dump_stacks(self) -> BackgroundTask[Round, str]:
        """Start writing the stacks of all ranks to artifacts/. The task returns the file's name.

        Raises Refused if there are no ranks.
        """
        if not self.is_stoppable:
            raise Refused("nothing runs")
        task = self._health.stacks_now()
        if task is None:
            raise Refused("no rank is known yet")
        return task

    def profile(self) -> None:
        """Ask the trainer to trace its next steps. Raises Refused if no attempt is running."""
        if self._live is None or not self.is_stoppable:
            raise Refused("nothing runs")
        self._live.paths.profile_file.touch()

    def keep_waiting(self, by: str) -> None:
        """Journal that the user chose to wait out the current stall."""
        self._health.keep_waiting(by)

    def _can_resume(self) -> bool:
        """Check whether a restart would resume from a checkpoint or is allowed to start from scratch."""
        state = self._ledger.state
        job, saved = state.answered_job(self._record.job), state.resumable
        return job.retry.restart_from_scratch or can_go_on(job.knobs, saved)

    def _stack_targets(self) -> Targets | None:
        """Return the processes to inspect now, or None if no process of the attempt is known yet."""
        view, live, job = self._ledger.state.attempt, self._live, self._record.job
        if live is None or view is None:
            return None
        known = {
            (rank.rank if rank is not None and rank.rank is not None else local): process
            for local, process in live.ranks.items()
            if is_alive(process)
            for rank in [view.ranks.get(local)]
        }
        if not known and job.entry_kind is EntryKind.COMMAND:
            # The process of a plain `python train.py`, whose children are data workers, or the first below a wrapper.
            below = [] if is_plain_python(job) else live.child.tree()
            known = dict(enumerate([*below, *live.alive()][:1]))
        if not known:
            return None
        return Targets(
            attempt=view.number,
            ranks=known,
            attempt_root=live.paths.root,
            artifacts=self._run.artifacts,
            env={**self._env, **dict(job.env)},
            # Dumps carry the machine's time, so after the clock is set back they look older than they are.
            since_t=(view.started_t or view.planned_t) + min(self._clock.ahead_s(), 0.0),
            python=self._record.interpreter,
        )

    def _drop_copies(self) -> None:
        """Remove the copy of the checkpoint that was resumed from once a newer checkpoint is committed."""
        newest = self._ledger.state.checkpoint
        if newest is not None and newest is not self._newest:
            self._newest = newest
            self._health.saved(newest)
            self._saved()

    def find_checkpoints(self) -> None:
        """After an attempt, journal the checkpoints that the script did not report."""
        self._found.finish(self._ledger.state)
        self._drop_copies()

    # -- its end -----------------------------------------------------------------------------------

    def cut(self) -> None:
        """Stop reading a finished attempt's logs early. The verdict uses what has been read so far."""
        ending = self._ending
        if ending is None:
            return
        ending.reading.hurry()
        until = self._clock.mono() + CUT_S
        while not (ending.reading.look() and self._queue.empty()) and self._clock.mono() < until:
            self.receive(LOOK_S)
        self._finish(ending)

    def _give_provisional(self, number: int, delay_s: float = 0.0, *, rank_died: bool = False) -> None:
        """Give a provisional verdict before all logs have been read, so the user sees the cause within a second.

        The first is given once a rank has died; the second, once the launcher is exiting or has exited with logs unread.
        """
        now = self._clock.mono()
        if now < self._provisional_at.setdefault(rank_died, now + delay_s) or not self._engine.ready:
            return
        verdict = self.judging.look(number, whole=False)
        if verdict is None:
            return
        self._provisional_at[rank_died] = float("inf")
        view = self._ledger.state.attempt
        known = view is not None and view.verdict == verdict
        # One rank's logs may show nothing yet.
        vague = rank_died and verdict.failure in VAGUE
        if not (known or vague):
            now_t = self._clock.wall()
            self._ledger.emit(ev.Diagnosed(t=now_t, attempt=number, verdict=verdict, provisional=True))

    def _begin_end(self, number: int, status: ExitStatus, collector: Collector) -> None:
        self._health.end()
        collector.look()
        self._ending = _Ending(number, status, LastReading(collector.logs, self._clock))
        self._read_out(self._ending)

    def _read_out(self, ending: _Ending) -> None:
        """Finish the attempt once its logs have been read. If that takes long, give a provisional verdict."""
        view = self._ledger.state.attempt
        why = view.stop.why if view is not None and view.stop is not None else None
        took_s = ending.reading.took_s
        too_long = took_s > SIGNAL_READ_S and why in {ev.StopWhy.SIGNAL, ev.StopWhy.REQUEUE}
        if too_long or (ending.reading.look() and self._queue.empty()):
            self._finish(ending)
        elif took_s > HURRIED_DRAIN_S:
            if view is not None and view.gone_t is None:
                self._recorder.expect_backlog()  # earlier observations must not be written later with earlier times
                gone = ev.ProcessesGone(
                    t=self._clock.wall(), attempt=ending.number, exit_code=ending.exit.exit_code
                )
                self._ledger.emit(gone, durable=True)
            if ending.exit.exit_code != 0 and why not in st.REQUESTED_STOPS:
                self._give_provisional(ending.number)

    def _finish(self, ending: _Ending) -> None:
        assert self._collector is not None, "what is read is read by its sensors"
        self._collector.stop()
        # Do this after the threads have ended, because later observations would count for the next attempt.
        while not self._queue.empty():
            self._observe(self._queue.get_nowait())
        backlog = self._collector.logs.backlog()
        self._live = self._collector = self._ending = None
        self._measured.look(self._ledger.state, is_over=True)
        self._foretell()
        self._recorder.flush()
        self._stepped(self._ledger.state)
        view, code = self._ledger.state.attempt, ending.exit.exit_code
        all_ended_well = code == 0 and self._record.job.has_own_code
        kills, before = memory_kills(), self._kills_before
        self._ledger.emit(
            ev.AttemptEnded(
                t=self._clock.wall(),
                attempt=ending.number,
                exit_code=code,
                exit_t=ending.exit.t,
                last_step=view.last_step if view else None,
                memory_kills=kills - before if kills is not None and before is not None else None,
                # torchrun exits with 0 only if every rank did.
                rank_exit_codes=dict.fromkeys(view.ranks, 0) if view and all_ended_well else {},
                log_read_bytes=backlog.read_bytes if backlog.unread_bytes else None,
                log_size_bytes=backlog.size_bytes if backlog.unread_bytes else None,
            ),
            durable=True,
        )
