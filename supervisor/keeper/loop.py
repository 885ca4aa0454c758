"""The keeper: a single thread that journals events, folds them, and acts on the resulting state.

Only the folded state drives the loop: each condition has one action (`_act`). A keeper that adopts a run can
therefore replay the journal and continue, because nothing it needs exists only in memory.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace as replace_fields

from supervisor.cluster.scheduler import scheduler_of
from supervisor.job.errors import JobError, NotResumableError
from supervisor.keeper.base.background import Background
from supervisor.keeper.base.control_input import ControlInput, Refused
from supervisor.keeper.base.job_secrets import redactor_of
from supervisor.keeper.base.keeper_clock import SET_S, Clock, ClockWatch
from supervisor.keeper.base.ledger import Ledger, RunContext, later_findings, opening
from supervisor.keeper.planning import launch_plans as plans
from supervisor.keeper.planning.launch_plans import Launching, StillAlive
from supervisor.keeper.process.child import Child, ExitStatus, own_identity, read_exit
from supervisor.keeper.process.takeover import recorded_processes
from supervisor.keeper.requests import carry_out
from supervisor.policy import EXIT_FAILED, EXIT_GAVE_UP, EXIT_LOST, EXIT_REQUEUE, EXIT_STOPPED
from supervisor.policy.rules import rule_for
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.answers import (
    AnswerLine,
    remember_answer,
)
from supervisor.run.fold import fold
from supervisor.run.node_files import Launch, Superseded
from supervisor.run.ownership import KeeperLock
from supervisor.run.paths import RunPaths, make_private
from supervisor.run.records import Decision, DecisionKind, Finding
from supervisor.run.runfile import RunFile
from supervisor.sources.processes import boot_id, is_alive
from supervisor.sources.signature_files import EngineLoader

if TYPE_CHECKING:
    from supervisor.keeper.attempt_monitor import AttemptMonitor
    from supervisor.keeper.fit_batch import Prober
    from supervisor.keeper.planning.readiness import KeptCopies, ReadinessCheck
    from supervisor.keeper.recording.recovery_report import RecoveryReport

log = logging.getLogger("stoker.keeper")

TICK_S = 0.1
MIN_TICK_S = 0.005
ENDING_TICK_S = 0.02
LIFE_S = 5.0
AGAIN_S = 1.0
"""Seconds to wait before checking again for a missing run folder, because a mount may disappear briefly."""
EXIT_INTERRUPTED = 130
LATE = "journal_written_late_"
UNWATCHED_S = 30.0
"""Seconds without a dashboard after which a held run ends if only an edit can fix its failure."""


class Group:
    """The other nodes of a run, from one keeper's point of view. This base class has none.

    Attributes:
        leads: whether this node makes the decisions and answers requests.
        others: the nodes whose evidence counts for a verdict.
        nodes: the nodes of the next attempt, empty on a single machine.
    """

    leads = True
    others: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()

    def join(self, keeper: Keeper) -> None:
        """Attach the keeper, which holds its lock and is about to start."""

    def begin(self, continued_by: str) -> None:
        """Start along with the keeper's loop. `continued_by` is the user who is continuing the run."""

    def step(self, *, hurried: bool) -> bool:
        """Check on the other nodes and act. Return True if the keeper has nothing else to do for now."""
        del hurried
        return False

    def publish(self) -> None:
        """Send any changes to the other nodes."""

    def may_launch(self, reason: str) -> str | None:
        """Return the reason to journal for a launch, or None if no launch is allowed now."""
        return reason

    def announce(self, number: int, launch: Launch) -> None:
        """Order the other nodes to launch. The launch is already journaled and about to start."""

    def stop(self, why: ev.StopWhy, by: str, *, now: bool) -> bool:
        """Handle a stop request. Return whether the group carries it out."""
        del why, by, now
        return False

    def close(self, *, superseded: bool) -> None:
        """Shut down with the keeper. If `superseded`, a new keeper leads the run, so the other nodes are not told."""


class Keeper:
    """Takes a run from its current state to its end. Holds the lock from construction until `close`.

    `group` holds the nodes of the run, or is None for a single machine.

    Attributes:
        astray: what happened to a missing run directory (deleted or moved), or "".

    Raises (on construction):
        LockTaken: another keeper is alive.
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
        continued_by: str = "",
        group: Group | None = None,
    ) -> None:
        """`continued_by` is the user who asked for the next attempt of a run that has no live process."""
        self._node = run.node(record.node)
        self._record = record
        self._env = dict(env)
        self._clock = clock or Clock()
        self._continued_by, self._superseded = continued_by, ""
        self._group = group or Group()
        self._life_due = float("-inf")
        self._told_late = 0
        self.astray = ""
        self._watched_t = self._clock.mono()
        for folder in (self._node.root, run.control, run.artifacts):
            make_private(folder)
        me = own_identity()
        self._lock = KeeperLock(self._node.lock, start_time=me.start_time)
        self._ledger = Ledger(self._node, redactor_of(record.job, self._env))
        self._clock_watch = ClockWatch(self._clock, self.emit)
        self.context = context = RunContext(
            run,
            self._node,
            record,
            self._env,
            self._clock,
            self._ledger,
            others=self._group.others,
            same_boot=self.state.boot_id in {None, boot_id()},
        )
        self._group.join(self)
        self._waits_for_group = False
        self.launching = Launching(context, lambda: self._group.nodes, self._group.announce)
        self._later_checks: Background[list[Finding]] = Background("stoker-checks")
        for fact in opening(context, me, findings, continued_by=continued_by):
            self.emit(fact)
        self._engine = EngineLoader(begin=False, own=record.job.signatures)
        self._control = ControlInput(
            run,
            self._ledger,
            self._clock,
            dump_stacks=lambda: self.monitor.dump_stacks(),  # noqa: PLW0108  # it loads the monitor
            carry_out=lambda request, by: carry_out(self, request, by),
            stop=lambda why, by, now: self.stop(why, by, now=now),
            answers=self._group.leads,
        )

    @property
    def state(self) -> st.RunState:
        """The state folded from all events so far."""
        return self._ledger.state

    @property
    def adopted(self) -> bool:
        """Whether another keeper started this run."""
        return self._ledger.adopted

    # What is needed once something runs is imported then: the first launch would wait 0.15 s for it.

    @cached_property
    def monitor(self) -> AttemptMonitor:
        """The monitor for the latest attempt."""
        from supervisor.keeper.attempt_monitor import AttemptMonitor

        stepped, saved = self._report.look, self._copies.release
        return AttemptMonitor(self.context, self._engine, stepped=stepped, saved=saved)

    @cached_property
    def _report(self) -> RecoveryReport:
        from supervisor.keeper.recording.recovery_report import RecoveryReport

        return RecoveryReport(self.context)

    @cached_property
    def _copies(self) -> KeptCopies:
        from supervisor.keeper.planning.readiness import KeptCopies

        return KeptCopies(self.context)

    @cached_property
    def _readiness(self) -> ReadinessCheck:
        from supervisor.keeper.planning.readiness import ReadinessCheck

        return ReadinessCheck(self._record.job, self._node, self._env, self._clock, self.emit)

    @cached_property
    def _prober(self) -> Prober:
        from supervisor.keeper.fit_batch import Prober

        return Prober(self.context, self._engine)

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal an event, then fold it."""
        self._ledger.emit(event, durable=durable)

    def install_signal_handlers(self) -> Callable[[], None]:
        """Queue signals as requests. Return a function that restores the previous handlers."""
        return self._control.install_signal_handlers()

    def run_to_end(self) -> int:
        """Run to completion and return the exit code for `--no-ui`. Return early if another keeper takes over the run."""
        try:
            return self._run_loop()
        except Superseded as error:
            self._superseded = str(error)
            log.error("%s", error)
            return EXIT_LOST

    def _run_loop(self) -> int:
        if self._continued_by:
            self._go_on(self._continued_by)
        self._group.begin(self._continued_by)
        while not isinstance(self.state.condition, st.Finished):
            self._show_life()
            if not self._launches_first():
                self.monitor.receive(self._patience_s())
                self.monitor.write()
            self._clock_watch.look()
            self._control.look()
            self._act()
            for finding in self._later_checks.poll() or ():
                self.emit(ev.PreflightFound(t=self._clock.wall(), finding=finding))
        return self.state.condition.exit_code

    def _launches_first(self) -> bool:
        """Whether the next step is the first launch, with no need to search for a batch or wait for other nodes."""
        waits = self._waits_for_group or self._record.job.fit is not None
        return isinstance(self.state.condition, st.Preflight) and not waits

    def learn_end(self) -> None:
        """Find out how and why an attempt with no live process ended. If the job succeeded, end the run."""
        while isinstance(self.state.condition, st.Launching | st.Running | st.Stopping):
            if self.monitor.is_active:
                self._show_life()
                self.monitor.receive(self._patience_s())
                self.monitor.write()
                self.monitor.look()
            elif any(map(is_alive, recorded_processes(self._node, self.state))):
                # The process may not belong to the run, so do not wait for it. A person was asked about it.
                number, now = self._attempt_number(), self._clock.wall()
                status = read_exit(self._node.attempt(number)) or ExitStatus(None)
                code = status.exit_code
                self.emit(ev.AttemptEnded(t=now, attempt=number, exit_code=code, exit_t=status.t))
            else:
                self.monitor.adopt()
        if isinstance(self.state.condition, st.Ended):
            self._diagnose(self.state.condition.attempt, hurried=True)
        view = self.state.attempt
        if isinstance(self.state.condition, st.DiagnosedAs) and view is not None:
            decision = view.decision or self._next_decision()
            if decision.kind is DecisionKind.SUCCEED:
                self._decided(view.number, decision)
                self._apply(view.number, decision)

    def _go_on(self, by: str) -> None:
        """Start the next attempt of a halted run, just as if the user had requested a restart."""
        self._control.refuse_waiting("asked before the run was continued")
        self.learn_end()
        view, condition = self.state.attempt, self.state.condition
        if isinstance(condition, st.Finished) and condition.outcome is ev.Outcome.SUCCEEDED:
            return
        if view is not None:
            self._decided(view.number, plans.continuing(self._record, self.state, self._env, by), by)
            self.start_now()
        elif isinstance(condition, st.Finished):  # the run ended before any launch
            self.launch(f"{by} continued it")

    def _show_life(self) -> None:
        """Signal to hosts that cannot see the lock that the keeper is alive. They wait longer than `LIFE_S` for a signal."""
        if (now := self._clock.mono()) < self._life_due:
            return
        self._life_due = now + LIFE_S
        self._ledger.flush()
        self._lock.show_life()
        self._look_for_folder()
        trouble, view = self._ledger.trouble, self.state.attempt
        if trouble and view is not None and self._told_late != view.number:
            # Once per attempt: the advisory explains a gap in the attempt's times.
            self._told_late = view.number
            text = f"the journal could not be written for a while ({trouble}): its events were kept, and written later"
            self.context.advise(view.number, f"{LATE}{view.number}", text)

    def _look_for_folder(self) -> None:
        """Check whether the run folder was deleted or moved. If so, training continues, but the folder is not re-created."""
        where = self._ledger.astray()
        if where and not self.astray:
            time.sleep(AGAIN_S)
            where = self._ledger.astray()
        if where != self.astray:
            what = f"was {where}: training continues, and no other attempt will be started"
            log.error("%s %s", self._node.root, what if where else "is in its place again")
        self.astray = where

    def _end_without_folder(self, condition: st.Condition) -> None:
        """End the run along with its attempt. Without the run folder, nothing can be read or started."""
        view, reason = self.state.attempt, f"the run directory was {self.astray}"
        ended = view.exit_code if view is not None else None
        if view is not None and view.ended_t is not None and ended == 0:
            self.end(ev.Outcome.SUCCEEDED, 0, f"the command ended with exit code 0; {reason}")
        elif view is not None and view.stop is not None and view.stop.why in st.REQUESTED_STOPS:
            self.end(ev.Outcome.STOPPED, self._stopped_code(), f"stopped by {view.stop.by}; {reason}")
        elif isinstance(condition, st.Ended) and condition.exit_code is None:
            self.end(ev.Outcome.LOST, EXIT_LOST, f"how the command ended is not known: {reason}")
        else:
            how = f"the command ended with exit code {ended}, and why cannot be read: " if ended else ""
            self.end(ev.Outcome.FAILED, EXIT_FAILED, f"{how}{reason}")

    def _stopped_code(self, otherwise: int = EXIT_STOPPED) -> int:
        return EXIT_INTERRUPTED if self._control.interrupts else otherwise

    @property
    def reads_on(self) -> bool:
        """Whether the latest attempt's processes are gone while its logs are still being read."""
        return self.state.attempt is not None and self.state.attempt.reads_on

    def _patience_s(self) -> float:
        """Return how many seconds the next check may wait for the sensors (0 between attempts)."""
        match self.state.condition:
            case st.Ended() if self.reads_on:
                return ENDING_TICK_S
            case st.Running() | st.Stopping() if self.monitor.is_draining_logs:
                return MIN_TICK_S
            case st.Running() if self.monitor.is_about_to_end:
                return ENDING_TICK_S
            case _ if self._waits_for_group:
                return TICK_S
            case st.Ended() if self.monitor.judging.busy:
                return MIN_TICK_S
            case st.Ended() | st.DiagnosedAs():
                return 0.0
            case st.Backoff(until=until) if self.state.waiting is None:
                return min(max(until - self._clock.wall(), MIN_TICK_S), TICK_S)
            case _:
                return TICK_S

    def close(self, why: str = "the run ended") -> None:
        """Stop the sensors, close the files and release the lock. Leave child processes running."""
        self._group.close(superseded=bool(self._superseded))
        why = self._superseded or why
        self._control.close()
        self._prober.stop()
        self._readiness.close()
        self._copies.close()
        self.monitor.close()
        self.emit(ev.KeeperLeft(t=self._clock.wall(), why=why))
        self._ledger.close()
        self._lock.release()
        self._engine.close()

    # -- the state machine ---------------------------------------------------------------------

    def _act(self, *, hurried: bool = False) -> None:
        """Act on the condition. If `hurried`, do not wait for a verdict that requires reading large logs in full."""
        self._waits_for_group = self._group.step(hurried=hurried)
        if not self._waits_for_group:
            self._act_alone(hurried=hurried)
        self._group.publish()

    def _act_alone(self, *, hurried: bool) -> None:
        condition = self.state.condition
        if self._is_without_folder(condition):
            self._end_without_folder(condition)
            return
        match condition:
            case st.Preflight():
                if self._launches_first() or self._prober.tick(self.state):
                    self.launch("first launch")
                    if self._record.settings.checks:  # beside the launcher, so that the start does not wait
                        self._later_checks.start(lambda: later_findings(self.context))
            case st.Launching() | st.Running() | st.Stopping():
                self.watch()
            case st.Ended() if self.reads_on:
                self.watch()
            case st.Ended():
                self._diagnose(condition.attempt, hurried=hurried)
            case st.DiagnosedAs():
                self._decide()
            case st.Backoff():
                self._wait(condition)
            case st.HeldOpen():
                self._hold_on(condition)
            case st.Finished():
                return
            case _ as unreachable:
                assert_never(unreachable)

    def _is_without_folder(self, condition: st.Condition) -> bool:
        """Check whether no process is alive and the run folder is missing. Unless held, look for the folder once more first."""
        lives = isinstance(condition, st.Launching | st.Running | st.Stopping | st.Finished)
        if lives or self.reads_on:
            return False
        if not isinstance(condition, st.HeldOpen):  # a hold may take hours, with a check every few seconds
            self._look_for_folder()
        return bool(self.astray)

    def _hold_on(self, held: st.HeldOpen) -> None:
        """End a hold after `hold_s`, or after `UNWATCHED_S` without a viewer if only an edit (such as fixing a typo) can help."""
        view, now = self.state.find(held.attempt), self._clock.mono()
        verdict = view.verdict if view is not None else None
        stays = verdict is None or rule_for(verdict.failure, verdict.reason).held_unwatched
        if stays or self.monitor.is_watched():
            self._watched_t = now
        left_s = None if held.until is None else held.until - self._clock.wall()
        unwatched = now - self._watched_t >= UNWATCHED_S
        if left_s is not None and left_s > self._record.job.timing.hold_s + SET_S:
            self.hold(held.reason)  # a keeper that is gone held it before the machine's clock was set back
        elif unwatched or (left_s is not None and left_s <= 0):
            code = (held.decision.exit_code if held.decision else None) or EXIT_FAILED
            gave_up = code == EXIT_GAVE_UP and not unwatched
            who = "watched" if unwatched else "answered"
            self.end(
                ev.Outcome.GAVE_UP if gave_up else ev.Outcome.FAILED, code, f"nobody {who}: {held.reason}"
            )

    def _wait(self, condition: st.Backoff) -> None:
        left_s, delay_s = condition.until - self._clock.wall(), condition.delay_s
        if delay_s is not None and left_s > delay_s + SET_S:
            # The machine's clock was set back after an earlier keeper began the wait.
            self._back_off(condition.attempt, delay_s)
        elif left_s <= 0 and self._copies.ready(condition):
            if self._readiness.ready(self.state, condition):
                self.launch(condition.decision.reason)
            elif self._readiness.refusal:
                self.hold_or_fail(condition.attempt, self._readiness.refusal, condition.decision)

    def _back_off(self, number: int, delay_s: float) -> None:
        now = self._clock.wall()
        self.emit(ev.BackoffStarted(t=now, attempt=number, until=now + delay_s, delay_s=delay_s))

    def _decided(self, number: int, decision: Decision, by: str = "policy") -> None:
        self.emit(ev.Decided(t=self._clock.wall(), attempt=number, decision=decision, by=by), durable=True)

    def hold_or_fail(self, number: int, reason: str, decided: Decision | None = None) -> None:
        """Handle a decision that cannot be carried out now: wait for the user, or end the run if it is headless."""
        kind = DecisionKind.HOLD if self._record.settings.interactive else DecisionKind.FAIL
        before = decided or Decision(kind, reason)
        decision = replace(before, kind=kind, reason=reason, exit_code=EXIT_FAILED, show_first=())
        self._decided(number, decision)
        self._apply(number, decision)

    def launch(self, reason: str) -> None:
        """Start the next attempt. If it cannot start, hold or end the run."""
        allowed = self._group.may_launch(reason)
        if allowed is None:
            return
        try:
            self.follow(self.launching.launch(allowed))
        except (NotResumableError, StillAlive) as error:
            self.hold_or_fail(self._attempt_number(), str(error))
        except JobError as error:
            self.end(ev.Outcome.FAILED, error.exit_code, error.message)

    def follow(self, child: Child | None) -> None:
        """Watch the attempt that was just started."""
        if child is not None:
            adopted = self.state if self.launching.took_over else None
            self.monitor.follow(child, self._attempt_number(), adopted=adopted)

    def watch(self) -> None:
        """Watch the latest attempt, first taking it over if another keeper launched it."""
        if self.monitor.is_active:
            self.monitor.look()
            return
        launching = isinstance(self.state.condition, st.Launching)
        self.monitor.adopt()
        if launching and not self.monitor.is_active:
            self.launch("the keeper died before it was launched")

    def _diagnose(self, number: int, *, hurried: bool) -> None:
        view = self.state.attempt
        # A person who did not wait for the logs to be read will not wait for a full verdict either.
        hurried = hurried or (view is not None and view.has_unread)
        verdict = (
            self.monitor.judging.at_once(number) if hurried else self.monitor.judging.look(number, whole=True)
        )
        if verdict is None:
            return
        self.emit(ev.Diagnosed(t=self._clock.wall(), attempt=number, verdict=verdict))
        self.monitor.find_checkpoints()
        self._report.measure(self.state)

    def _decide(self) -> None:
        view = self.state.attempt
        assert view is not None, "a verdict belongs to an attempt"
        if view.decision is None:
            from supervisor.keeper.planning.decisions import needs_smaller_batch, next_answer

            # If a smaller batch needs answers: first the known answers, then answers that may be tried.
            while needs_smaller_batch(self._record, self.state, view):
                now = self._clock.wall()
                told = next_answer(self._record, self.state, self._env, now, tries=True)
                if told is None:
                    break
                self.emit(told, durable=True)
            self._decided(view.number, self._next_decision())
            return
        self._apply(view.number, view.decision)

    def _next_decision(self) -> Decision:
        """Decide what to do after the latest attempt."""
        from supervisor.keeper.planning.decisions import decide_next

        watched = self.monitor.is_watched()
        return decide_next(self._record, self.state, env=self._env, watched=watched)

    def _apply(self, number: int, decision: Decision) -> None:
        match decision.kind:
            case DecisionKind.RESTART:
                self._report.say_change(self.state)
                self._back_off(number, decision.delay_s)
            case DecisionKind.HOLD:
                self._ask(number, decision)
                self.hold(decision.reason)
            case DecisionKind.SUCCEED:
                self.end(ev.Outcome.SUCCEEDED, 0, decision.reason)
            case DecisionKind.FAIL:
                self._ask(number, decision)
                outcome = ev.Outcome.LOST if decision.exit_code == EXIT_LOST else ev.Outcome.FAILED
                self.end(outcome, decision.exit_code or EXIT_FAILED, decision.reason)
            case DecisionKind.GIVE_UP:
                self.end(ev.Outcome.GAVE_UP, decision.exit_code or EXIT_GAVE_UP, decision.reason)
            case DecisionKind.STOP | DecisionKind.REQUEUE:
                code = self._stopped_code(decision.exit_code or EXIT_STOPPED)
                self.end(ev.Outcome.STOPPED, code, decision.reason)
            case _ as unreachable:
                assert_never(unreachable)

    def _ask(self, number: int, decision: Decision) -> None:
        """Ask the open question once per attempt. A headless run prints the flag that answers it."""
        from supervisor.keeper.planning.decisions import question_after

        asked, question = self.state.asked, question_after(self._record, self.state, number)
        is_asked = asked is not None and (asked.attempt, asked.question) == (number, question)
        if decision.asks and question is not None and not is_asked:
            self.emit(ev.BatchAsked(t=self._clock.wall(), attempt=number, question=question))

    def end(self, outcome: ev.Outcome, exit_code: int, reason: str) -> None:
        """End the run."""
        has_copies = self.state.kept or any(view.resume_copy for view in self.state.attempts)
        ended = ev.RunEnded(t=self._clock.wall(), outcome=outcome, exit_code=exit_code, reason=reason)
        self.emit(ended, durable=True)
        if has_copies:
            self._copies.release(over=True)

    # -- called for requests (see `requests`) --------------------------------------------------------

    def stop(self, why: ev.StopWhy, by: str, *, now: bool = False) -> None:
        """Stop the attempt with the stop sequence, or end the run if no attempt is alive."""
        if self._group.stop(why, by, now=now):
            return
        if isinstance(self.state.condition, st.Finished) or self.stop_attempt(why, by, now=now):
            return
        if why is ev.StopWhy.RESTART:
            self.monitor.cut()  # the decision is made, and no other work is pending
        else:
            self.end_stopped(by, why)

    def stop_attempt(self, why: ev.StopWhy, by: str, *, now: bool) -> bool:
        """Begin the stop sequence. Return False if no attempt is alive."""
        lives = isinstance(self.state.condition, st.Launching | st.Running | st.Stopping)
        if lives and not self.monitor.is_active:
            self.monitor.adopt()
        if not self.monitor.is_stoppable:
            return False
        self.monitor.stop(why, by, grace_s=self._record.job.timing.grace_s, now=now)
        return True

    def end_stopped(self, by: str, why: ev.StopWhy = ev.StopWhy.REQUEST) -> None:
        """End a run that was stopped between two attempts."""
        # An attempt that has just ended may have finished the job, so settle that first.
        self._finish_now()
        if isinstance(self.state.condition, st.Finished):
            return
        in_job = why is ev.StopWhy.SIGNAL and scheduler_of(self._env).job is not None
        batch = in_job or why is ev.StopWhy.REQUEUE
        code = EXIT_REQUEUE if batch and self.state.checkpoint is not None else EXIT_STOPPED
        self.end(ev.Outcome.STOPPED, self._stopped_code(code), f"stopped by {by} between attempts")

    def _finish_now(self) -> None:
        """Decide what to do after an attempt whose command has exited, without waiting for all its logs to be read."""
        monitor = self.monitor
        while monitor.is_active or isinstance(self.state.condition, st.Ended | st.DiagnosedAs):
            monitor.cut()
            if monitor.is_active or self.reads_on:  # processes or another keeper's unread logs are left
                monitor.receive(MIN_TICK_S)
            self._act(hurried=True)

    def restart(self, args: control.RequestArgs, by: str, *, stop_first: bool) -> None:
        """Relaunch with the changes that the user requested. Raises BadChange."""
        change = plans.requested_change(self._record, self.state, args, self._env)
        decision = Decision(DecisionKind.RESTART, f"{by} asked for it", change=change)
        self._decided(self._attempt_number(), decision, by)
        if stop_first:
            self.stop(ev.StopWhy.RESTART, by)
        else:
            self.start_now()

    def start_now(self) -> None:
        """Start the next attempt on the next tick, skipping pending checks. Raises Refused if no attempt is due."""
        if isinstance(self.state.condition, st.Ended):
            self._finish_now()
            if not isinstance(self.state.condition, st.Backoff):
                raise Refused("no restart is waiting")
        view = self.state.attempt
        if view is not None and view.decision is not None and view.decision.show_first:
            self._decided(view.number, replace(view.decision, show_first=()), view.decided_by)
        self._back_off(self._attempt_number(), 0.0)

    def hold(self, reason: str) -> None:
        """Wait for the user, for at most the job's `hold_s`."""
        now, self._watched_t = self._clock.wall(), self._clock.mono()
        until = now + self._record.job.timing.hold_s
        self.emit(ev.Held(t=now, attempt=self._attempt_number(), reason=reason, until=until))

    def answer(self, value: str, by: str) -> None:
        """Accept the user's answer about the batch, remember it for later runs of the script, and make the decision again."""
        question, now, number = self.state.open_question, self._clock.wall(), self._attempt_number()
        if question is None:
            raise Refused("there is no open question")
        if value not in {answer.value for answer in question.answers}:
            raise Refused("that is no answer to what is asked")
        told = ev.BatchAnswered(t=now, question=question, value=value, by=by)
        batch = fold(self.state, told).answered_job(self._record.job).batch
        self.emit(replace_fields(told, batch=batch), durable=True)
        if question.script:
            line = AnswerLine(script=question.script, question=question.key, value=value, t=now)
            with contextlib.suppress(OSError):  # the answer still applies to this run
                remember_answer(line, self._env)
        if isinstance(self.state.condition, st.Running):
            return  # the answer is for a failure that may come
        decision = self._next_decision()
        self._decided(number, decision)
        self._apply(number, decision)

    def _attempt_number(self) -> int:
        return self.state.attempts[-1].number
