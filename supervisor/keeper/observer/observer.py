"""An observer: a keeper without a child. It watches what somebody else started and writes an observed run.

The directory, the journal and the series are those of any run, so every view opens it; requests other
than notes and stacks are refused, because nothing here may be stopped or restarted by us.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from supervisor.diagnosis.evidence import JobEvidence
from supervisor.diagnosis.hang.stack_groups import RankStack, stack_round
from supervisor.diagnosis.journal_facts import with_journal_facts
from supervisor.keeper.base.background import Background, BackgroundTask
from supervisor.keeper.base.keeper_clock import Clock, ClockWatch, SystemClock
from supervisor.keeper.base.request_rules import Refused
from supervisor.keeper.base.requests import ControlInput, Powerless
from supervisor.keeper.monitoring.last_reading import LastReading
from supervisor.keeper.monitoring.log_monitor import LogKey, LogKind, LogWatch
from supervisor.keeper.monitoring.observations import EvidenceHit, Observation, RankGone, Sampled
from supervisor.keeper.monitoring.sensors import Sensors
from supervisor.keeper.observer.belief import Belief
from supervisor.keeper.observer.rank_ends import RankEnds
from supervisor.keeper.observer.spooled_input import PipeCopy, Unpacking
from supervisor.keeper.observer.start_observed import ATTEMPT, ObservedRun, backlog_bytes
from supervisor.keeper.observer.target import PIPE_NAME, ObservedLog, Target
from supervisor.keeper.observer.writers import Writers
from supervisor.keeper.recording.recorder import Recorder
from supervisor.keeper.stalls.stack_file import StackFile, write_stacks
from supervisor.policy import EXIT_ENDED_EARLY, EXIT_FAILED, EXIT_LOST
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import Action, FailureClass, Reason, Verdict
from supervisor.run.regular import open_regular
from supervisor.run.runfile import SAMPLE_INTERVAL_S
from supervisor.run.state import RunState
from supervisor.sources.processes import ProcessId, is_alive
from supervisor.sources.signature_files import Engine, EngineLoader
from supervisor.sources.stacks.python_stacks import collect_stacks
from supervisor.sources.tail.tailer import Backlog
from supervisor.text.decode import clean
from supervisor.text.numbers import read_to
from supervisor.text.prefixes import Origin
from supervisor.text.stamps import Span, span_of

TICK_S = 0.1
ENDING_TICK_S = 0.01
RECEIVE_S = 0.1
"""Seconds per pass spent on observations: a flood of lines must not keep a request waiting."""
QUIET_S = 1.0
# A line that names a failure is judged sooner: once the lines around it are there.
QUIET_AFTER_HIT_S = 0.15
LEAVE_S = 3.0
"""How long one who leaves waits for what is not read yet; a second Ctrl-C waits for nothing."""
# A verdict reads the whole log: of an observer's time at most a twentieth goes into verdicts that are provisional.
JUDGE_REST = 20.0
JUDGE_CHEAP_S = 0.5
# A log that grew this lately is live, or may be: nobody need be seen to write it (NFS, containers, other users' jobs).
LATELY_S = 60.0
# A file whose last stamp is older than this by the time that it was changed is a copy: zones hardly differ by more.
COPIED_S = 86400.0
STAT_S = 1.0
# How often it is said how much of a backlog is read.
BEHIND_S = 1.0
# The verdict on large logs comes before anything is read for the curve, where it takes no longer than this: judging a log
# takes a tenth of reading its numbers, and beside that reading twice as long.
FIRST_S = 2.5
# How much of each end of a log is searched for clock times.
LOOKED_AT_BYTES = 1 << 16
LOOKED_AT_LINES = 400


class Observer(Powerless):
    """Watches a target until it ends or `leave` is called. Judges it at its end, and whenever it falls quiet."""

    def __init__(
        self,
        run: RunPaths,
        target: Target,
        *,
        host: str,
        judge: Callable[[Engine], Verdict],
        interval_s: float = SAMPLE_INTERVAL_S,
        clock: Clock | None = None,
        observed: ObservedRun | None = None,
        rules: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._run = run
        self._node = run.node()
        self._target = target
        self._judge = judge
        self._clock = clock or SystemClock()
        self._leave = threading.Event()
        self._over = threading.Event()
        self._stop = threading.Event()
        self._queue: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._engine = EngineLoader()
        self._pipe: PipeCopy | None = None
        self._unpacked: list[Unpacking] = []
        if target.pipe is not None:
            self._pipe = PipeCopy(target.pipe, self._node.attempt(ATTEMPT).root / PIPE_NAME, self._stop)
        self._observed = observed or ObservedRun.fresh(run, target, host=host, clock=self._clock)
        self._control = ControlInput(run, self, self._clock)
        self._clock_watch = ClockWatch(self._clock, self.emit)
        self._sensors = Sensors(
            self._stop, self._queue.put, self._clock, interval_s=interval_s, disk=str(run.root)
        )
        self._logs = LogWatch(
            self._stop,
            put=self._queue.put,
            clock=self._clock,
            engine=self._engine.get,
            rank_of=_rank_of,
            late=True,
            waiting=self._queue.qsize,
            rules=rules,
        )
        self._recorder = Recorder(
            self._node.series,
            self.emit,
            self._clock,
            self._backlog,
            apart_s=lambda: self._observed.ledger.apart_s,
            behind_interval_s=BEHIND_S,
            only_watches=True,
        )
        self._ranks = RankEnds(target.processes, self._queue.put, self.emit, self._clock)
        self._last_news = self._clock.mono()
        self._changed_t = last_written_t(target.logs)
        self._written_t = min(self._changed_t, self._clock.wall())
        self._stamped_t: float | None = None  # the last stamp of the logs
        self._grew_at = self._stat_at = self._clock.mono()
        self._belief = Belief.ASSUMED_OVER if target.ended else Belief.HELD
        sees_end = target.ended or bool(target.processes)
        self._writers = Writers(() if sees_end else _plain_paths(target))
        self._watched = False
        self._first: Background[tuple[Verdict, float]] = Background("stoker-first-verdict")
        self._read_at: float | None = None
        self._judged = False
        self._hit = False
        self._judge_due = 0.0
        self._judging: Background[tuple[Verdict, float]] = Background("stoker-verdict")
        self._reading: LastReading | None = None
        self._last_judged = False
        self._last_judging_at = 0.0
        self._closed: Verdict | None = None
        self._closed_at = 0.0
        self._cut = ""
        self._ends_itself = target.pipe is not None or bool(target.processes)
        self._hurried = False
        self._patience_s = LEAVE_S
        self._thread = threading.Thread(target=self._run_to_end, name="stoker-observer")

    @property
    def state(self) -> RunState:
        """The folded state."""
        return self._observed.state

    def start(self) -> None:
        """Begin to watch, in a thread."""
        self._begin()
        self._thread.start()

    def end_when_read(self) -> None:
        """For nobody who looks on: end by itself once a log is over, all of it is read and diagnosed, however long that takes."""
        self._ends_itself = True

    def leave(self, *, hurried: bool = False, patience_s: float = LEAVE_S) -> None:
        """Stop watching: the last verdict is given, and the directory is left complete.

        `hurried`: nobody will read it; what is not read yet stays unread, and no verdict is given. Else it is read on for
        `patience_s`; what has not been read by then stays unread, and how the job ended is then unknown.
        """
        self._hurried, self._patience_s = self._hurried or hurried, patience_s
        self._leave.set()
        if self._thread.ident is None:
            return  # Ctrl-C came before it began
        self._over.wait()
        self._thread.join()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the target's own end; True once it has come."""
        # Not for the thread: of one whose join Ctrl-C interrupts Python 3.11 says that it has ended (bpo-45274).
        return self._over.wait(timeout_s)

    # -- what requests may do here: notes and stacks (see control_input.Actor) --------------------------------

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal and fold a fact."""
        self._observed.emit(event, durable=durable)

    def dump_stacks(self) -> BackgroundTask[StackFile, str]:
        """Begin to write the stacks of the observed processes; the answer is the artifact's name."""
        if not self._target.processes:
            raise Refused("a log has no processes to look into")
        processes = dict(self._target.processes)
        return BackgroundTask("stoker-stacks-asked", lambda: self._take_stacks(processes), _name_of)

    def _take_stacks(self, processes: Mapping[int, ProcessId]) -> StackFile:
        stacks = dict(zip(processes, collect_stacks(list(processes.values())), strict=True))
        ranks = [RankStack(rank, s.source, s.lines, s.process.pid, s.main_call) for rank, s in stacks.items()]
        head = stack_round(ranks).text
        return write_stacks(self._run.artifacts, ATTEMPT, self._clock.wall(), head, stacks, [])

    # -- the thread --------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._target.unseen:
            now = self._clock.wall()
            self.emit(ev.Advisory(t=now, attempt=ATTEMPT, code="unseen", text=self._target.unseen))
        for index, log in enumerate(self._target.logs):
            path = self._observed.path_of(index, log)
            if log.packed:
                copy = Unpacking(log.path, Path(path), self._stop)
                self._unpacked.append(copy)
                copy.start()
            # A log that nobody holds open may be written all the same, line by line; a copy grows as it is unpacked.
            self._logs.follow(LogKey(log.name, LogKind.RANK, log.origin), path, ended=log.packed)
        for rank, process in self._target.processes:
            self._sensors.watch(str(rank), process)
        if self._pipe is not None:
            self._logs.follow(LogKey(PIPE_NAME, LogKind.RANK, Origin()), str(self._pipe.path))
            self._pipe.start()
        self._date()
        if self._pipe is not None or self._target.processes:
            self.emit(ev.LogQuiet(t=self._clock.wall(), attempt=ATTEMPT))  # it is there: nothing to look for
        self._recorder.begin(ATTEMPT)
        self._begin_reading()
        if self._is_here():
            self._sensors.start()

    def _begin_reading(self) -> None:
        """Now, or for a large log once its verdict is there (or lets wait for itself)."""
        if not backlog_bytes(self._target):
            self._logs.start()
            return
        self._read_at = self._clock.mono() + FIRST_S
        self._recorder.expect_backlog()
        self._first.start(self._timed_verdict)

    def _read_on(self) -> None:
        """Nothing is waited for any more."""
        if self._read_at is not None:
            self._read_at = None
            self._logs.start()

    def _backlog(self) -> Backlog:
        if self._read_at is None:
            return self._logs.backlog()
        return Backlog(0, backlog_bytes(self._target))

    def _look_first(self) -> None:
        """The verdict on a large log, which is made before, or beside, the reading of its numbers."""
        found = self._first.poll()
        if found is not None:
            verdict, _ = found
            if self._belief is Belief.ASSUMED_OVER and verdict.shows_end and not self._unpacked:
                self._close_attempt(verdict, read=False)
            else:
                self._take_back()
                self._tell(verdict, provisional=True)
        if self._read_at is not None and (self._first.is_idle() or self._clock.mono() >= self._read_at):
            self._read_on()
        if self._closed is not None and found is not None:
            self._reading = LastReading(self._logs, self._clock)

    def _take_back(self) -> None:
        """What the end of the log alone seemed to show before this process watched it (`cli.attaching.observe_target`) does not hold."""
        attempt = self.state.attempt
        if attempt is not None and attempt.ended_t is not None and self._closed is None:
            self.emit(ev.LogQuiet(t=self._clock.wall(), attempt=ATTEMPT))

    def _is_here(self) -> bool:
        """Whether the job is known to run on this machine: else its load and its GPUs are none of the job's."""
        return bool(self._target.processes or (self._target.logs and not self._target.ended))

    def _date(self) -> None:
        """Journal when the job began and ended by its processes' or its logs' own clocks: the time of watching is no time of the job."""
        if self._target.processes:
            oldest = min(process.start_time for _, process in self._target.processes)
            now = self._clock.wall()
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - oldest
            self.emit(ev.LogsDated(t=now, attempt=ATTEMPT, began_t=now - age_s))
            return
        if not self._target.logs:
            return
        if not all(copy.ended for copy in self._unpacked):
            return  # what is unpacked is dated at the end
        logs = [(log.path, self._observed.path_of(n, log)) for n, log in enumerate(self._target.logs)]
        found_over = self._target.ended and not self._watched
        span = span_of_logs(logs)
        began_t, over_t, is_dated, is_copy = span if span is not None else (None, None, True, False)
        self._stamped_t = over_t
        over = found_over and (self._closed is not None or not self._is_lately_written())
        known = self.state.attempt
        if began_t is not None or over or (known is not None and known.found_over):
            dated = ev.LogsDated(
                t=self._clock.wall(),
                attempt=ATTEMPT,
                began_t=began_t,
                over_t=over_t if over or is_copy else None,
                over=over,
                day_guessed=not is_dated,
                copied=is_copy,
            )
            self.emit(dated)

    def _run_to_end(self) -> None:
        try:
            self._observe()
        finally:
            self._over.set()

    def _observe(self) -> None:
        try:
            while not self._leave.is_set() and not (self._is_done and self._ends_itself):
                hurries = self._reading is not None or self._ranks.is_urgent
                self._look(ENDING_TICK_S if hurries else TICK_S)
            if not self._hurried:
                self._end()
            self._control.close()
        finally:
            self._stop.set()
            for copy in self._unpacked:
                copy.join()
            if self._pipe is not None:
                self._pipe.join()
            self._ranks.close()
            self._logs.close()
            if self._is_here():
                self._sensors.join()
            self._recorder.close()
            self._observed.ledger.close()
            self._observed.lock.release()
            self._engine.close()

    @property
    def _is_done(self) -> bool:
        """Whether it is judged for good, and read to its end."""
        return self._closed is not None and self._reading is None

    def _look(self, wait_s: float) -> None:
        if self._take(wait_s):
            self._last_news, self._judged = self._clock.mono(), False
            self._belief = self._belief.after_lines()
            if not self._is_lately_written():
                # Lines of a log that was quiet: it is live now, not up to a second later.
                self._stat_at = self._last_news
        self._recorder.tick()
        self._clock_watch.look()
        self._control.look()
        if self._closed is None:
            self._ranks.look(self.state)
        self._writers.look(self._clock.mono())
        self._look_quiet()
        self._look_first()
        if self._closed is not None:
            self._read_out()
            return
        found_over = self._belief.is_over(lately_written=self._is_lately_written())
        if (
            self._reading is None
            and self._read_at is None
            and (self._is_over() or found_over)
            and self._is_unpacked()
        ):
            self._reading = LastReading(self._logs, self._clock)
        if self._reading is None:
            self._judge_quiet()
        elif (verdict := self._last_verdict(self._reading)) is not None:
            if self._is_over() or self._unpacked or verdict.shows_end:
                if self._unpacked and not verdict.shows_end and not self._is_over():
                    # What was unpacked is not followed: the log fell quiet, and may say no end.
                    self.emit(ev.LogQuiet(t=self._clock.wall(), attempt=ATTEMPT, since_t=self._quiet_since_t))
                self._close_attempt(verdict)
            else:
                self._reading, self._last_judged = None, False
                # Lines that came while it was judged are judged still.
                self._belief, self._judged = (
                    self._belief.after_no_end(),
                    self._last_news < self._last_judging_at,
                )
                self._tell(verdict, provisional=True)
        if self._belief.is_decided_by_words and self._ends_itself and not self._is_lately_written():
            self._close_attempt(self._judge(self._engine.get()))

    def _read_out(self) -> None:
        """What is judged is read to its end for its numbers."""
        if self._reading is not None and self._reading.look() and self._queue.empty():
            self._reading = None
            self._recorder.flush()

    def _is_lately_written(self) -> bool:
        return self._clock.wall() - self._quiet_since_t < LATELY_S

    def _look_quiet(self) -> None:
        """Journal that the logs fell quiet, or that they grow again."""
        attempt = self.state.attempt
        if attempt is None or self._pipe is not None or self._target.processes or self._unpacked:
            return
        if self._read_at is not None:
            return  # what was not looked at yet is not quiet
        if self._clock.mono() >= self._stat_at:
            self._look_at_files()
        lately, since_t = self._is_lately_written(), attempt.quiet_since
        if self._closed is not None and self._grew_at > self._closed_at:
            self._closed, self._reading = None, None
            self._last_judged = self._judged = False
            self._belief, self._writers = Belief.REOPENED, Writers(_plain_paths(self._target))
            self.emit(ev.LogQuiet(t=self._clock.wall(), attempt=ATTEMPT))
            self._date()
        elif self._belief is Belief.ASSUMED_OVER and not attempt.log_checked and self._closed is None:
            return  # it may be over: until its end is judged nobody knows whether it is live
        elif (
            self._closed is None
            and (lately == (since_t is not None) or not attempt.log_checked)
            and not self._logs.backlog().unread_bytes
        ):
            since = None if lately else self._quiet_since_t
            self.emit(ev.LogQuiet(t=self._clock.wall(), attempt=ATTEMPT, since_t=since))
            if since_t is not None:
                self._date()

    @property
    def _quiet_since_t(self) -> float:
        """When the logs were last written: a copy's time of change is that of the copying, days after its last stamp."""
        stamped_t = self._written_t if self._watched or self._stamped_t is None else self._stamped_t
        return stamped_t if self._written_t - stamped_t > COPIED_S else self._written_t

    def _look_at_files(self) -> None:
        """Whether the logs were written since they were looked at last."""
        now = self._clock.mono()
        self._stat_at = now + STAT_S
        if (changed_t := last_written_t(self._target.logs)) != self._changed_t:
            # By our clock: a file server's may go otherwise.
            self._changed_t, self._written_t, self._grew_at = changed_t, self._clock.wall(), now
            self._watched = True

    def _is_unpacked(self) -> bool:
        return all(copy.ended for copy in self._unpacked)

    def _judge_quiet(self) -> None:
        """The logs have fallen quiet: what do they say? Of a file of gigabytes not at every pause."""
        now, found = self._clock.mono(), self._judging.poll()
        if found is not None:
            verdict, spent_s = found
            self._tell(verdict, provisional=True)
            self._belief = self._belief.after_pause(shows_end=verdict.shows_end)
            self._judge_due = now + (JUDGE_REST * spent_s if spent_s > JUDGE_CHEAP_S else 0.0)
        elif not (self._judged or self._judging.busy) and now >= self._judge_due and self._is_unpacked():
            self._judged = now - self._last_news > (QUIET_AFTER_HIT_S if self._hit else QUIET_S)
            if self._judged:
                self._hit = False
                self._judging.start(self._timed_verdict)

    def _timed_verdict(self) -> tuple[Verdict, float]:
        """A verdict, and how long this thread worked for it. Made beside ours: of a large log that takes seconds."""
        engine = self._engine.get()
        began = time.thread_time()
        return self._judge(engine), time.thread_time() - began

    def _last_verdict(self, reading: LastReading) -> Verdict | None:
        """The verdict on all that there is; None while it is not read to its end, or not judged."""
        if not (reading.look() and self._queue.empty()):
            return None
        found = self._judging.poll()
        if self._last_judged and not self._judging.busy:
            # What failed beside this thread fails here too, where it is heard of.
            return found[0] if found is not None else self._judge(self._engine.get())
        if not self._judging.busy:
            self._last_judged, self._last_judging_at = True, self._clock.mono()
            self._judging.start(self._timed_verdict)
        return None

    def _take(self, timeout_s: float) -> bool:
        """Record what arrived; whether any of it came from a log."""
        new_lines = False
        try:
            seen = self._queue.get(timeout=timeout_s)
            until = self._clock.mono() + RECEIVE_S
            while True:
                new_lines = new_lines or not isinstance(seen, Sampled | RankGone)
                self._hit = self._hit or isinstance(seen, EvidenceHit)
                self._recorder.record(ATTEMPT, seen)
                self._ranks.observe(seen)
                if self._clock.mono() > until:
                    return new_lines
                seen = self._queue.get_nowait()
        except queue.Empty:
            return new_lines

    def _is_over(self) -> bool:
        if self._pipe is not None:
            return self._pipe.ended
        if self._target.processes:
            return not any(is_alive(process) for _, process in self._target.processes)
        return self._writers.gone

    def _close_attempt(self, verdict: Verdict, *, read: bool = True) -> None:
        """The target is over: say so, and why. Where not all of it was read, that is not known.

        `read`: as far as it will be. Else it continues to be read for its numbers: the verdict has read it all by itself.
        """
        self._recorder.flush()
        if read:
            self._cut = self._cut or self._unread(done=True)
        self._look_at_files()  # what the verdict has read is no growth that would revive the job
        self._closed = _unknown(self._cut) if self._cut else verdict
        self._closed_at = self._clock.mono()
        backlog, attempt = self._logs.backlog(), self.state.attempt
        if read or attempt is None or attempt.ended_t is None:
            self.emit(
                ev.AttemptEnded(
                    t=self._clock.wall(),
                    attempt=ATTEMPT,
                    exit_code=None,
                    last_step=attempt.last_step if attempt is not None else None,
                    log_read_bytes=backlog.read_bytes if backlog.unread_bytes and read else None,
                    log_size_bytes=backlog.size_bytes if backlog.unread_bytes and read else None,
                )
            )
        self._date()
        self._tell(self._closed, provisional=False)

    def _unread(self, *, done: bool) -> str:
        """What of the logs was not read, for a person; empty where all was. `done`: their last reading came to its end."""
        if any(copy.torn for copy in self._unpacked):
            return "its log was not unpacked to its end"
        if self._pipe is not None and self._pipe.torn:
            return "its pipe was not read to its end"
        backlog = self._logs.backlog()
        if backlog.unread_bytes and (self._is_gone or not done):
            return read_to(backlog.read_bytes, backlog.size_bytes)
        return "" if done else "its log was not read to its end"

    @property
    def _is_gone(self) -> bool:
        return self._is_over() or self._target.ended

    def _end(self) -> None:
        """Over, or left: the last verdict, and the outcome."""
        deadline = self._clock.mono() + self._patience_s
        while (
            self._closed is not None
            and self._reading is not None
            and self._clock.mono() < deadline
            and not self._hurried
        ):
            self._look(ENDING_TICK_S)
        verdict = self._closed if self._closed is not None else self._leave_off()
        if self._cut:
            how = (
                f"{self._cut}: how it ended is not known"
                if self._is_gone
                else f"no longer watched; {self._cut}"
            )
            outcome, code, reason = ev.Outcome.LOST, EXIT_LOST, how
        elif verdict is not None and verdict.reason is Reason.ENDED_EARLY:
            outcome, code, reason = ev.Outcome.FAILED, EXIT_ENDED_EARLY, verdict.title
        elif verdict is not None and verdict.failure not in {FailureClass.HEALTHY, FailureClass.UNKNOWN}:
            outcome, code, reason = ev.Outcome.FAILED, EXIT_FAILED, verdict.title
        elif verdict is not None and verdict.shows_end:
            outcome, code, reason = ev.Outcome.SUCCEEDED, 0, "the log reports the end of the job"
        elif self._is_gone:
            # No failure was seen, so 0; and no end either, so nobody can say that it succeeded.
            outcome, code, reason = ev.Outcome.LOST, 0, "no line says how the job ended"
            if self._target.processes:
                reason = "the watched job ended; how cannot be seen"
            codes = self._ranks.codes
            if any(codes.values()):
                first = next(code for code in codes.values() if code)
                outcome, code, reason = (
                    ev.Outcome.FAILED,
                    EXIT_FAILED,
                    f"exit code {first} of a watched process",
                )
            elif self._target.processes and len(codes) == len(self._target.processes):
                outcome, reason = ev.Outcome.SUCCEEDED, "the watched processes ended with exit code 0"
        else:
            outcome, code, reason = ev.Outcome.STOPPED, 0, "no longer watched"
        self.emit(ev.RunEnded(t=self._clock.wall(), outcome=outcome, exit_code=code, reason=reason))

    def with_end(self, job: JobEvidence) -> JobEvidence:
        """The same evidence, with exit code 0 and how far the job came, where all watched processes were seen to end with 0."""
        view, codes = self.state.attempt, self._ranks.codes
        seen = bool(codes) and len(codes) == len(self._target.processes)
        if view is None or not seen or any(codes.values()):
            return job
        job = with_journal_facts(job._replace(launcher_exit=0), [(self.state, view)])
        return job._replace(is_code_own=True)

    def _leave_off(self) -> Verdict | None:
        """It was left: what can be read and judged in the time that there is, and what was not."""
        self._read_on()
        reading = self._reading = self._reading or LastReading(self._logs, self._clock)
        reading.hurry()
        verdict, deadline = None, self._clock.mono() + self._patience_s
        while verdict is None and self._clock.mono() < deadline and not self._hurried:
            self._take(ENDING_TICK_S)
            self._recorder.tick()
            if self._is_unpacked():
                verdict = self._last_verdict(reading)
        done = verdict is not None or reading.look()
        gone = self._is_gone
        self._stop.set()
        self._logs.close()
        for copy in self._unpacked:
            copy.join()
        while not self._queue.empty():
            self._take(0.0)
        self._cut = self._unread(done=done) or (
            "it was left before it was judged" if gone and not verdict else ""
        )
        if self._cut:
            verdict = _unknown(self._cut)
        if gone and verdict is not None:
            self._close_attempt(verdict)
        elif verdict is not None:
            self._recorder.flush()
            self._tell(verdict, provisional=True)
        return verdict

    def _tell(self, verdict: Verdict, *, provisional: bool) -> None:
        known = self.state.attempt.verdict if self.state.attempt else None
        if provisional and (known == verdict or verdict.failure is FailureClass.HEALTHY):
            return
        self.emit(
            ev.Diagnosed(t=self._clock.wall(), attempt=ATTEMPT, verdict=verdict, provisional=provisional)
        )


def _name_of(written: StackFile) -> str:
    if written.name is None:
        raise OSError("the stacks could not be written")
    return written.name


def _rank_of(origin: Origin) -> int | None:
    """What a log's samples are keyed by: a rank, else the number of its file (a rank or a node)."""
    known = (n for n in (origin.rank, origin.local_rank, origin.task) if n is not None)
    return next(known, None)


def _unknown(unread: str) -> Verdict:
    """The verdict on a log that was not read to its end: what stands there may be anything."""
    return Verdict(
        failure=FailureClass.UNKNOWN,
        reason=None,
        confidence=0.0,
        rank=None,
        ranks=(),
        node=None,
        title=f"How it ended is not known: {unread}",
        cause=None,
        consequences=(),
        advice=(),
        action=Action.NONE,
        fingerprint="",
    )


def _plain_paths(target: Target) -> tuple[str, ...]:
    """The logs that are read where they are."""
    return tuple(log.path for log in target.logs if not log.packed)


def last_written_t(logs: Iterable[ObservedLog]) -> float:
    """When the newest of the logs was last changed, wall seconds; 0 where there is none."""
    times = []
    for log in logs:
        with contextlib.suppress(OSError):
            times.append(os.stat(log.path).st_mtime)
    return max(times, default=0.0)


def span_of_logs(logs: Iterable[tuple[str, str]]) -> Span | None:
    """The first and the last time, wall seconds, that logs of one job carry; None: none carries any.

    An observer itself does not see when the job began or ended.

    Args:
        logs: the path of each, and where it can be read as it is.
    """
    spans = [span for path, plain in logs if (span := _span(path, plain)) is not None]
    if not spans:
        return None
    return Span(
        min(span.began_t for span in spans),
        max(span.over_t for span in spans),
        all(span.is_dated for span in spans),
        all(span.is_copy for span in spans),
    )


def _span(path: str, plain: str) -> Span | None:
    try:
        written_t = os.stat(path).st_mtime  # a plain copy's own time says nothing
        with open_regular(plain) as file:
            size = os.fstat(file.fileno()).st_size
            head = os.pread(file.fileno(), LOOKED_AT_BYTES, 0)
            tail = os.pread(file.fileno(), LOOKED_AT_BYTES, max(size - LOOKED_AT_BYTES, 0))
    except OSError:
        return None
    first = [clean(raw) for raw in head.splitlines()[:LOOKED_AT_LINES]]
    last = [clean(raw) for raw in tail.splitlines()[-LOOKED_AT_LINES:]]
    return span_of(first, last, written_t, path)
