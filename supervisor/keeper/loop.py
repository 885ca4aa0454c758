"""The keeper: one thread that journals facts, folds them, and acts on what the state says.

The loop is driven by the folded state alone: each condition has one thing to do (`_act`). So a keeper
that adopts a run replays the journal and simply goes on; nothing it needs lives only in memory.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from supervisor.job.errors import JobError
from supervisor.job.spec import EntryKind
from supervisor.keeper import plans
from supervisor.keeper.aftermath import Aftermath
from supervisor.keeper.attempt import LiveAttempt
from supervisor.keeper.clock import Clock, SystemClock
from supervisor.keeper.collect import Collector
from supervisor.keeper.engine import EngineLoader
from supervisor.keeper.gate import Gate, Way
from supervisor.keeper.health import Health
from supervisor.keeper.judgement import decide_next, diagnose_attempt
from supervisor.keeper.observations import Observation
from supervisor.keeper.opening import opening
from supervisor.keeper.probing import Prober
from supervisor.keeper.process import (
    Child,
    SpawnError,
    adopt,
    own_identity,
    raise_open_files_limit,
    read_exit,
    spawn,
)
from supervisor.keeper.recorder import Recorder
from supervisor.keeper.requests import Refused
from supervisor.keeper.stack_rounds import Targets, targets_of
from supervisor.keeper.wishes import Wishes
from supervisor.policy import EXIT_FAILED, EXIT_GAVE_UP, EXIT_LOST, EXIT_REQUEUE, EXIT_STOPPED
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.fold import fold
from supervisor.run.journal import JournalWriter, read_state
from supervisor.run.lock import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.records import Decision, DecisionKind, Finding, Verdict
from supervisor.run.runfile import RunFile
from supervisor.sources.processes import boot_id

TICK_S = 0.1
PROVISIONAL_DELAY_S = 0.4
ADOPT_WAIT_S = 2.0
"""How long an adopting keeper waits for the launcher that a dead one may have just started."""
EXIT_INTERRUPTED = 130

log = logging.getLogger("stoker.keeper")


class Keeper:
    """Carries one run from its state to its end. Holds the lock from construction to `close`.

    Raises (on construction):
        LockTaken: another keeper lives.
        OSError: the run directory cannot be written.
    """

    def __init__(
        self,
        run: RunPaths,
        record: RunFile,
        *,
        env: Mapping[str, str],
        findings: tuple[Finding, ...] = (),
        clock: Clock | None = None,
        node: int = 0,
    ) -> None:
        self._run = run
        self._node = run.node(node)
        self._record = record
        self._env = dict(env)
        self._clock = clock or SystemClock()
        self._node.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        run.control.mkdir(exist_ok=True, mode=0o700)
        run.artifacts.mkdir(exist_ok=True, mode=0o700)
        me = own_identity()
        self._lock = KeeperLock(self._node.lock, start_time=me.start_time)
        adopted = self._node.journal.exists() and self._node.journal.stat().st_size > 0
        self.state = read_state(self._node.journal) if adopted else st.RunState()
        self._journal = JournalWriter(self._node.journal)
        self._queue: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._wishes = Wishes(run, self, self._clock)
        self._recorder = Recorder(self._node.series, self.emit, self._clock)
        self._health = Health(self._node, record.job.hang, self.emit, self._clock, self._stack_targets)
        self._live: LiveAttempt | None = None
        self._collector: Collector | None = None
        self._engine = EngineLoader()
        self._provisional_at: float | None = None
        self._aftermath = Aftermath(run, self._node, record, self._env, self._clock, self.emit)
        self._gate = Gate(record.job, self._node, self._env, self._clock, self.emit)
        self._prober = Prober(
            run, self._node, record, env=self._env, clock=self._clock, emit=self.emit, engine=self._engine.get
        )
        now = self._clock.wall()
        self._same_boot = self.state.boot_id in {None, boot_id()}
        for fact in opening(run.run_id, record, me, now, adopted=adopted, findings=findings):
            self.emit(fact)

    def install_signal_handlers(self) -> Callable[[], None]:
        """Let signals become wishes; returns the undo."""
        return self._wishes.install_signal_handlers()

    def carry(self) -> int:
        """Run to the end of the run; the exit code of `--no-ui`."""
        while not isinstance(self.state.condition, st.Finished):
            self._drain_queue(TICK_S)
            self._recorder.tick()
            self._wishes.look()
            self._act()
        return self.state.condition.exit_code

    def close(self, why: str = "the run ended") -> None:
        """Stop the sensors, close the files, let the lock go. Children are left as they are."""
        if self._collector is not None:
            self._collector.stop()
            self._collector = None
        self._prober.stop()
        self._recorder.close()
        self._health.close()
        self.emit(ev.KeeperLeft(t=self._clock.wall(), why=why))
        self._journal.close()
        self._lock.release()

    # -- facts ---------------------------------------------------------------------------------

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal a fact, then fold it. A full disk costs the line, never the run."""
        try:
            self._journal.append(event, durable=durable)
        except OSError as error:
            log.error("journal: %s: a fact was not written: %s", error.strerror, type(event).__name__)
        self.state = fold(self.state, event)

    def _drain_queue(self, timeout_s: float) -> None:
        try:
            self._observe(self._queue.get(timeout=timeout_s))
            # No more than is there now: a flood of lines must not keep a stop waiting.
            for _ in range(self._queue.qsize()):
                self._observe(self._queue.get_nowait())
        except queue.Empty:
            return

    def _observe(self, observation: Observation) -> None:
        if self._live is not None:
            self._live.speaks_wire = self._live.speaks_wire or observation.from_wire
            self._recorder.record(self._live.number, observation)
            self._health.observe(observation)

    # -- the state machine ---------------------------------------------------------------------

    def _act(self) -> None:
        condition = self.state.condition
        match condition:
            case st.Preflight():
                if self._prober.tick(self.state):
                    self._launch("first launch")
            case st.Launching() | st.Running() | st.Stopping():
                self._watch()
            case st.Ended():
                self._diagnose(condition.attempt)
            case st.DiagnosedAs():
                self._decide()
            case st.Backoff():
                if self._clock.wall() >= condition.until:
                    self._leave_backoff(condition)
            case st.HeldOpen():
                if condition.until is not None and self._clock.wall() >= condition.until:
                    code = (condition.decision.exit_code if condition.decision else None) or EXIT_FAILED
                    outcome = ev.Outcome.GAVE_UP if code == EXIT_GAVE_UP else ev.Outcome.FAILED
                    self._end(outcome, code, f"held for too long: {condition.reason}")
            case st.Finished():
                return
            case _ as unreachable:
                assert_never(unreachable)

    def _leave_backoff(self, condition: st.Backoff) -> None:
        match self._gate.way(self.state, condition):
            case Way.GO:
                self._launch(condition.decision.reason)
            case Way.WAIT:
                return
            case Way.NEVER:
                held = self._record.settings.interactive
                decision = replace(
                    condition.decision,
                    kind=DecisionKind.HOLD if held else DecisionKind.FAIL,
                    reason=self._gate.refusal,
                    exit_code=EXIT_FAILED,
                    show_first=(),
                )
                now = self._clock.wall()
                self.emit(ev.Decided(t=now, attempt=condition.attempt, decision=decision), durable=True)
                self._carry_out(condition.attempt, decision)
            case _ as unreachable:
                assert_never(unreachable)

    def _launch(self, reason: str) -> None:
        number = len(self.state.attempts) + 1
        paths = self._node.attempt(number)
        try:
            plan = plans.plan_next(self._record, self.state, self._run, paths, self._env)
            plans.write_edits(plan)
        except JobError as error:
            self._end(ev.Outcome.FAILED, error.exit_code, error.message)
            return
        try:
            plans.write_plan(paths, plan)
        except OSError as error:
            log.error("%s: %s: the plan was not written", paths.plan, error.strerror)
        self.emit(
            ev.LaunchIntended(
                t=self._clock.wall(),
                attempt=number,
                argv=plans.journal_argv(plan),
                reason=reason,
                batch=plan.batch,
                resume=plan.resume,
                script_hash=plans.script_hash(self._record.job),
            ),
            durable=True,
        )
        if plans.script_was_edited(self.state):
            # Code edited between attempts is a change nobody planned: say so.
            text = "the script was edited since the last attempt"
            self.emit(ev.Advisory(t=self._clock.wall(), attempt=number, code="script_edited", text=text))
        if plans.changes_so_far(self.state).raise_open_files:
            raise_open_files_limit()
        # A pid that lies here already is of a keeper that died with the disk full: its journal missed this launch.
        child = adopt(paths)
        if child is None:
            try:
                child = spawn(plan, paths, self._env)
            except SpawnError as error:
                log.error("attempt %d: %s", number, error)
                self.emit(ev.AttemptEnded(t=self._clock.wall(), attempt=number, exit_code=127))
                verdict = plans.spawn_verdict(str(error), disk_full=error.disk_full)
                self.emit(ev.Diagnosed(t=self._clock.wall(), attempt=number, verdict=verdict))
                return
        self._begin(child, number)

    def _begin(self, child: Child, number: int) -> None:
        now = self._clock.wall()
        pid = child.pid
        self.emit(ev.AttemptStarted(t=now, attempt=number, pid=pid.pid, start_time=pid.start_time))
        self._watch_child(child, number)

    def _watch_child(self, child: Child, number: int, *, adopted: st.RunState | None = None) -> None:
        self._collector = Collector(
            child.paths,
            put=self._queue.put,
            clock=self._clock,
            interval_s=self._record.settings.sample_interval_s,
            engine=self._engine.get,
            engine_ready=lambda: self._engine.ready,
            job=self._record.job,
        )
        self._live = LiveAttempt(
            number,
            child,
            clock=self._clock,
            local_world_size=plans.changes_so_far(self.state).nproc_per_node
            or self._record.job.nproc_per_node,
            one_node=self._record.job.nnodes == "1",
            crash_grace_s=self._record.job.timing.death_grace_s,
            ends=self._collector.agent_is_ending,
            whole_tree=self._record.job.entry_kind is EntryKind.COMMAND,
        )
        self._recorder.begin(number, adopted=adopted)
        self._health.begin(number, adopted=adopted)
        self._provisional_at = None
        self._collector.start()

    def _adopt_attempt(self) -> None:
        """Take over the attempt that another keeper left: dead or alive, seen or only intended."""
        view = self.state.attempt
        assert view is not None, "a launched condition has an attempt"
        if not self._same_boot:
            # The machine was booted since: nothing of the attempt lives, and its pids may be anybody's.
            status = read_exit(self._node.attempt(view.number))
            code = status.exit_code if status is not None else None
            self.emit(ev.AttemptEnded(t=self._clock.wall(), attempt=view.number, exit_code=code))
            return
        launching = isinstance(self.state.condition, st.Launching)
        child = adopt(self._node.attempt(view.number), wait_s=ADOPT_WAIT_S if launching else 0.0)
        if child is None:
            self.emit(ev.AttemptEnded(t=self._clock.wall(), attempt=view.number, exit_code=None))
            return
        if launching:
            self._begin(child, view.number)
        else:
            self._watch_child(child, view.number, adopted=self.state)
        assert self._live is not None
        assert self._collector is not None
        self._live.know(view)
        self._collector.know(view)
        if view.stop is not None and view.ended_t is None:
            self._live.stop(view.stop.why, view.stop.by, grace_s=view.stop.grace_s)

    def _watch(self) -> None:
        if self._live is None or self._collector is None:
            launching = isinstance(self.state.condition, st.Launching)
            self._adopt_attempt()
            if launching and self._live is None:
                self._launch("the keeper died before it was launched")
            return
        live, collector = self._live, self._collector
        for fact in live.watch():
            self.emit(fact, durable=isinstance(fact, ev.StopIntended))
            if isinstance(fact, ev.RankStarted):
                collector.add_rank(fact)
        collector.look()
        self._aftermath.say_recovery(self.state)
        if live.is_over():
            self._finish_attempt(live, collector)
        elif collector.agent_is_ending() and live.ladder is None:
            self._give_provisional(live)
        elif live.ladder is None and live.exit is None:
            self._health.line_seen(collector.last_line())
            if self._health.tick():
                self._end_hang(live)

    def _end_hang(self, live: LiveAttempt) -> None:
        """No rank answers: no asking for a checkpoint, and no more grace than peers of a dead rank get."""
        grace_s = self._record.job.timing.death_grace_s
        intent = live.stop(ev.StopWhy.HANG, "keeper", grace_s=grace_s)
        if intent is not None:
            self.emit(intent, durable=True)

    def _give_provisional(self, live: LiveAttempt) -> None:
        """A verdict before torchrun has ended, so that a person reads the cause within a second."""
        now = self._clock.mono()
        if self._provisional_at is None:
            self._provisional_at = now + PROVISIONAL_DELAY_S
        elif now >= self._provisional_at and self._engine.ready:
            self._provisional_at = float("inf")
            verdict = self._judge(live.number)
            self.emit(
                ev.Diagnosed(t=self._clock.wall(), attempt=live.number, verdict=verdict, provisional=True)
            )

    def _finish_attempt(self, live: LiveAttempt, collector: Collector) -> None:
        self._health.end()
        collector.look()
        collector.drain()
        collector.stop()
        self._drain_queue(0.0)  # after the threads: what comes later would count for the next attempt
        self._recorder.flush()
        self._aftermath.say_recovery(self.state)
        code = live.exit.exit_code if live.exit is not None else None
        view = self.state.attempt
        self.emit(
            ev.AttemptEnded(
                t=self._clock.wall(),
                attempt=live.number,
                exit_code=code,
                last_step=view.last_step if view else None,
                # torchrun ends with 0 only when every rank did.
                rank_exit_codes=dict.fromkeys(view.ranks, 0) if view and code == 0 else {},
            ),
            durable=True,
        )
        self._live = self._collector = None

    def _judge(self, number: int) -> Verdict:
        return diagnose_attempt(self._node, self.state, number, self._record.job, self._engine.get())

    def _diagnose(self, number: int) -> None:
        verdict = self._judge(number)
        self.emit(ev.Diagnosed(t=self._clock.wall(), attempt=number, verdict=verdict))
        self._aftermath.measure(self.state)

    def _decide(self) -> None:
        view = self.state.attempt
        assert view is not None, "a verdict belongs to an attempt"
        if view.decision is None:
            decision = decide_next(self._record, self.state, node=self._node, env=self._env)
            self.emit(ev.Decided(t=self._clock.wall(), attempt=view.number, decision=decision), durable=True)
            return
        self._carry_out(view.number, view.decision)

    def _carry_out(self, number: int, decision: Decision) -> None:
        now = self._clock.wall()
        match decision.kind:
            case DecisionKind.RESTART:
                self._aftermath.say_change(self.state)
                until = now + decision.delay_s
                self.emit(ev.BackoffStarted(t=now, attempt=number, until=until, delay_s=decision.delay_s))
            case DecisionKind.HOLD:
                self.hold(decision.reason)
            case DecisionKind.SUCCEED:
                self._end(ev.Outcome.SUCCEEDED, 0, decision.reason)
            case DecisionKind.FAIL:
                outcome = ev.Outcome.LOST if decision.exit_code == EXIT_LOST else ev.Outcome.FAILED
                self._end(outcome, decision.exit_code or EXIT_FAILED, decision.reason)
            case DecisionKind.GIVE_UP:
                self._end(ev.Outcome.GAVE_UP, decision.exit_code or EXIT_GAVE_UP, decision.reason)
            case DecisionKind.STOP | DecisionKind.REQUEUE:
                code = EXIT_INTERRUPTED if self._wishes.interrupts else decision.exit_code or EXIT_STOPPED
                self._end(ev.Outcome.STOPPED, code, decision.reason)
            case _ as unreachable:
                assert_never(unreachable)

    def _end(self, outcome: ev.Outcome, exit_code: int, reason: str) -> None:
        self.emit(
            ev.RunEnded(t=self._clock.wall(), outcome=outcome, exit_code=exit_code, reason=reason),
            durable=True,
        )

    # -- what wishes make it do (see wishes.Actor) -------------------------------------------------

    def stop(self, why: ev.StopWhy, by: str, *, now: bool = False) -> None:
        """End the attempt by the ladder, or the run where no attempt lives."""
        if isinstance(self.state.condition, st.Finished):
            return
        if self._live is None and isinstance(self.state.condition, st.Launching | st.Running | st.Stopping):
            self._adopt_attempt()
        if self._live is None:
            if why is not ev.StopWhy.RESTART:  # of a restart the decision stands, and nothing is in its way
                self.end_stopped(by, why)
            return
        intent = self._live.stop(why, by, grace_s=self._record.job.timing.grace_s, now=now)
        if intent is not None:
            self.emit(intent, durable=True)

    def end_stopped(self, by: str, why: ev.StopWhy = ev.StopWhy.REQUEST) -> None:
        """End a run between two attempts."""
        # An attempt that has just ended may have finished the job: that is settled first.
        while isinstance(self.state.condition, st.Ended | st.DiagnosedAs):
            self._act()
        if isinstance(self.state.condition, st.Finished):
            return
        batch = why is ev.StopWhy.REQUEUE or (why is ev.StopWhy.SIGNAL and "SLURM_JOB_ID" in self._env)
        code = EXIT_REQUEUE if batch and self.state.checkpoint is not None else EXIT_STOPPED
        if self._wishes.interrupts:
            code = EXIT_INTERRUPTED
        self._end(ev.Outcome.STOPPED, code, f"stopped by {by} between attempts")

    def restart(self, args: control.RequestArgs, by: str, *, stop_first: bool) -> None:
        """Relaunch with what a person changed. Raises BadChange."""
        change = plans.requested_change(self._record.job, self.state, args)
        decision = Decision(DecisionKind.RESTART, f"{by} asked for it", change=change)
        number = self._attempt_number()
        self.emit(ev.Decided(t=self._clock.wall(), attempt=number, decision=decision, by=by), durable=True)
        if stop_first:
            self.stop(ev.StopWhy.RESTART, by)
        else:
            self.start_now()

    def start_now(self) -> None:
        """The next attempt starts at the next tick."""
        now = self._clock.wall()
        self.emit(ev.BackoffStarted(t=now, attempt=self._attempt_number(), until=now, delay_s=0.0))

    def hold(self, reason: str) -> None:
        """Wait for a person, for at most the job's `hold_s`."""
        now = self._clock.wall()
        until = now + self._record.job.timing.hold_s
        self.emit(ev.Held(t=now, attempt=self._attempt_number(), reason=reason, until=until))

    def dump_stacks(self) -> str:
        """Write the stacks of all ranks to artifacts/; the file's name."""
        if self._live is None:
            raise Refused("nothing runs")
        name = self._health.stacks_now()
        if name is None:
            raise Refused("no rank is known yet")
        return name

    def _stack_targets(self) -> Targets | None:
        view = self.state.attempt
        if self._live is None or view is None:
            return None
        python = self._record.interpreter
        return targets_of(self._run, self._node, self._record.job, view, self._live, self._env, python)

    def _attempt_number(self) -> int:
        return self.state.attempts[-1].number
