"""An observer: a keeper without a child process. It watches a job that it did not start and writes an observed run.

The directory, journal and series have the same format as in any run, so every view can open them. Requests
other than notes and stacks are refused, because an observer must not stop or restart the job.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from supervisor.diagnosis.evidence import JobEvidence, LogSource
from supervisor.diagnosis.journal_facts import with_journal_facts
from supervisor.diagnosis.verdict import Examination, diagnose, examine, is_rank_told
from supervisor.keeper.base.background import Background, BackgroundTask
from supervisor.keeper.base.control_input import ControlInput, Refused
from supervisor.keeper.base.keeper_clock import ClockWatch
from supervisor.keeper.monitoring.collector import Sensors
from supervisor.keeper.monitoring.log_monitor import LastReading, LogKey, LogKind, LogWatch
from supervisor.keeper.monitoring.observations import Observation, RankGone, Sampled, received
from supervisor.keeper.monitoring.rank_failures import RankEnds
from supervisor.keeper.observed_run import (
    ATTEMPT,
    PIPE_NAME,
    ObservedRun,
    PipeCopy,
    Target,
    Writers,
    end_of,
    last_written_t,
    span_of_logs,
)
from supervisor.keeper.recording.recorder import Recorder
from supervisor.keeper.stalls.stack_rounds import Round, Targets, take_round
from supervisor.policy import EXIT_ENDED_EARLY, EXIT_FAILED, EXIT_LOST
from supervisor.run import events as ev
from supervisor.run.records import Action, FailureClass, Reason, Verdict
from supervisor.run.runfile import SAMPLE_INTERVAL_S
from supervisor.run.state import RunState
from supervisor.sources.processes import is_alive
from supervisor.sources.signature_files import EngineLoader
from supervisor.sources.tail.tailer import Backlog
from supervisor.text.lines import read_to
from supervisor.text.prefixes import Origin

TICK_S = 0.1
ENDING_TICK_S = 0.01
QUIET_S = 0.5
LEAVE_S = 3.0
"""Seconds to keep reading after the user leaves. A second Ctrl-C cuts this short."""
# A verdict reads the whole log, so provisional verdicts may take at most a twentieth of the time.
JUDGE_REST = 20.0
JUDGE_CHEAP_S = 0.5
# A log that grew this recently may be live, even if no writer is visible (NFS, containers, other users' jobs).
LATELY_S = 60.0
# A file whose last timestamp is this much older than its mtime is a copy. Time zones differ by less.
COPIED_S = 86400.0
STAT_S = 1.0
Extent = tuple[int, ...]
CLEAR = 0.9
"""Minimum confidence for showing a verdict from a log's tail alone if the log's last lines come from the failure itself."""
NO_FAILURE = frozenset((FailureClass.HEALTHY, FailureClass.UNKNOWN, FailureClass.TERMINATED))


class Observer:
    """Watches a target until it ends or `leave` is called. Gives a verdict whenever the logs fall quiet, and at the end.

    A pipe ends at EOF, processes end once all of them have exited, and a log ends once its known writers have exited.
    If a log has no known writer, its contents decide: it ends once a verdict on all of its text says that the job has
    ended. If such a log grows again, the job counts as ended only after `LATELY_S` without a new line.

    Args:
        observed: the run directory, already started.
        target: what to watch, and whether its logs are still being written.
        read: returns the evidence for a verdict; raises OSError or ValueError if the logs are gone.
        interval_s: seconds between sensor readings.
        rules: the user's own metrics, as (name, regex).
    """

    def __init__(
        self,
        observed: ObservedRun,
        target: Target,
        *,
        read: Callable[[], JobEvidence],
        interval_s: float = SAMPLE_INTERVAL_S,
        rules: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._observed, self._target, self._clock = observed, target, observed.clock
        self._read = read
        self._leave, self._over, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._queue: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._engine = EngineLoader()
        self._pipe: PipeCopy | None = None
        if target.pipe is not None:
            copy = observed.node.attempt(ATTEMPT).root / PIPE_NAME
            self._pipe = PipeCopy(target.pipe, copy, self._stop)
        self._control = ControlInput(observed.run, observed.ledger, self._clock, dump_stacks=self.dump_stacks)
        self._clock_watch = ClockWatch(self._clock, self.emit)
        disk = str(observed.run.root)
        self._sensors = Sensors(self._stop, self._queue.put, self._clock, interval_s=interval_s, disk=disk)
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
            observed.node.series,
            self.emit,
            self._clock,
            self._backlog,
            apart_s=lambda: observed.ledger.apart_s,
            only_watches=True,
        )
        self._ranks = RankEnds(target.processes, self._queue.put, self.emit, self._clock)
        self._writers = Writers(() if target.ended or target.processes else target.paths)
        # -- whether the logs are growing
        self._last_news = self._grew_at = self._stat_at = self._clock.mono()
        self._changed_t = last_written_t(target.logs)
        self._written_t = min(self._changed_t, self._clock.wall())
        self._stamped_t: float | None = None  # the last timestamp in the logs
        self._watched = False  # written since the observer started
        # -- the logs' contents: the newest verdict, and the extent of the logs that it covers
        self._judging: Background[Verdict] = Background("stoker-verdict")
        self._judging_of: Extent = ()
        self._judged: tuple[Verdict, Extent] | None = None
        self._end_shown = False
        self._began_judging = self._judge_due = 0.0
        # -- whether the job has ended
        self._words_decide = self._reopened = False
        self._reading: LastReading | None = None
        self._closed: tuple[Verdict, float] | None = None
        self._cut = target.cut
        self._ends_itself = target.pipe is not None or bool(target.processes)
        self._hurried, self._patience_s = False, LEAVE_S
        self._thread = threading.Thread(target=self._run_to_end, name="stoker-observer")

    @property
    def state(self) -> RunState:
        """The state folded from all events so far."""
        return self._observed.ledger.state

    def start(self) -> None:
        """Start watching in a thread."""
        self._begin()
        self._thread.start()

    def end_when_read(self) -> None:
        """Exit once a log has ended and has been read and diagnosed, however long that takes. Does not require the TUI."""
        self._ends_itself = True

    def leave(self, *, hurried: bool = False, patience_s: float = LEAVE_S) -> None:
        """Stop watching, give the final verdict and leave a complete directory behind.

        If `hurried`, nobody will read the verdict, so stop reading and give none. Otherwise, keep reading for
        `patience_s` seconds. If some of the logs are still unread after that, the job's outcome is unknown.
        """
        self._hurried, self._patience_s = self._hurried or hurried, patience_s
        self._leave.set()
        if self._thread.ident is None:
            return  # Ctrl-C came before the thread started
        self._over.wait()
        self._thread.join()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the target to end on its own. Return whether it has."""
        # Do not ask the thread: after Ctrl-C in a join, Python 3.11 reports it as ended (bpo-45274).
        return self._over.wait(timeout_s)

    # -- requests that an observer accepts --------------------------------------

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal and fold an event."""
        self._observed.ledger.emit(event, durable=durable)

    def dump_stacks(self) -> BackgroundTask[Round, str]:
        """Start dumping the observed processes' stacks. The task returns the artifact's name."""
        if not self._target.processes:
            raise Refused("a log has no processes to look into")
        folder, processes = self._observed.node.attempt(ATTEMPT).root, dict(self._target.processes)
        targets = Targets(
            ATTEMPT, processes, folder, self._observed.run.artifacts, {}, self._clock.wall(), None
        )

        def name_of(taken: Round) -> str:
            if taken.artifact is None:
                raise OSError("the stacks could not be written")
            return taken.artifact

        return BackgroundTask("stoker-stacks-asked", lambda: take_round(targets, self._clock), name_of)

    # -- the thread --------------------------------------------------------------------------------

    def _begin(self) -> None:
        for log in self._target.logs:
            # A log that no process holds open may still be written, line by line.
            self._logs.follow(LogKey(log.name, LogKind.RANK, log.origin), log.path, ended=bool(log.packed))
        for rank, process in self._target.processes:
            self._sensors.watch(str(rank), process)
        if self._pipe is not None:
            self._logs.follow(LogKey(PIPE_NAME, LogKind.RANK, Origin()), str(self._pipe.path))
            self._pipe.start()
        self._date()
        if self._pipe is not None or self._target.processes:
            self.emit(ev.LogQuiet(t=self._clock.wall(), attempt=ATTEMPT))  # a live job needs no search
        self._recorder.begin(ATTEMPT)
        if self._target.backlog_bytes:
            self._recorder.expect_backlog()
            self._start_judging(of_end=self._target.ended and not self._is_lately_written())
        self._logs.start()
        if self._target.ended:
            self._reading = LastReading(self._logs, self._clock)
        if self._is_here():
            self._sensors.start()

    def _backlog(self) -> Backlog:
        """Return how much of the logs has been read. Until the logs are opened, everything counts as unread."""
        found = self._logs.backlog()
        return found if found.size_bytes else Backlog(0, self._target.backlog_bytes)

    def _is_here(self) -> bool:
        """Check whether the job is known to run on this machine. Otherwise, the load and GPUs shown do not belong to the job."""
        return bool(self._target.processes or (self._target.logs and not self._target.ended))

    def _date(self) -> None:
        """Journal when the job started and finished according to its processes or logs, rather than when it was watched."""
        if self._target.processes:
            oldest = min(process.start_time for _, process in self._target.processes)
            now = self._clock.wall()
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - oldest
            self.emit(ev.LogsDated(t=now, attempt=ATTEMPT, began_t=now - age_s))
            return
        if not self._target.logs:
            return
        span = span_of_logs(self._target.logs)
        began_t, over_t, is_dated, is_copy = span if span is not None else (None, None, True, False)
        self._stamped_t = over_t
        found_over = self._target.ended and not self._watched
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
            while not self._leave.is_set() and not (self._closed is not None and self._ends_itself):
                self._look(ENDING_TICK_S if self._reading is not None else TICK_S)
            if not self._hurried:
                self._end()
            self._control.close()
        finally:
            self._stop.set()
            if self._pipe is not None:
                self._pipe.join()
            self._ranks.close()
            self._logs.close()
            if self._is_here():
                self._sensors.join()
            self._recorder.close()
            self._observed.close()
            self._engine.close()

    def _look(self, wait_s: float) -> None:
        if self._take(wait_s):
            self._last_news = self._clock.mono()
        self._recorder.tick()
        self._clock_watch.look()
        self._control.look()
        self._writers.look(self._clock.mono())
        self._look_quiet()
        if self._closed is None:
            self._ranks.look(self.state)
            self._judge()

    def _take(self, timeout_s: float) -> bool:
        """Record new observations. Return whether any came from a log."""
        new_lines = False
        for seen in received(self._queue, self._clock, timeout_s):
            new_lines = new_lines or not isinstance(seen, Sampled | RankGone)
            self._recorder.record(seen)
            self._ranks.observe(seen)
        return new_lines

    # -- whether the logs are growing --------------------------------------------------------------

    def _is_lately_written(self) -> bool:
        return self._clock.wall() - self._quiet_since_t < LATELY_S

    @property
    def _quiet_since_t(self) -> float:
        """When the logs were last written to. For a copied log, the modification time is when it was copied."""
        stamped_t = self._written_t if self._watched or self._stamped_t is None else self._stamped_t
        return stamped_t if self._written_t - stamped_t > COPIED_S else self._written_t

    def _look_at_files(self) -> None:
        """Check whether the logs have been written to since the last check."""
        now = self._clock.mono()
        self._stat_at = now + STAT_S
        if (changed_t := last_written_t(self._target.logs)) != self._changed_t:
            # By the local clock, because a file server's clock may differ.
            self._changed_t, self._written_t, self._grew_at = changed_t, self._clock.wall(), now
            self._watched = True

    def _look_quiet(self) -> None:
        """Journal when the logs fall quiet and when they grow again."""
        attempt = self.state.attempt
        if attempt is None or self._pipe is not None or self._target.processes or self._target.is_copy:
            return
        if self._clock.mono() >= self._stat_at:
            self._look_at_files()
        if self._closed is not None:
            if self._grew_at > self._closed[1]:
                self._closed = self._judged = None
                self._words_decide = self._reopened = True
                self._writers = Writers(self._target.paths)
                self._say_quiet(None)
                self._date()
            return
        if self._target.ended and not self._words_decide and not attempt.log_checked:
            return  # its end is not judged yet, so it may be live or not
        lately, since_t = self._is_lately_written(), attempt.quiet_since
        is_news = lately == (since_t is not None) or not attempt.log_checked
        if is_news and not self._logs.backlog().unread_bytes:
            self._say_quiet(None if lately else self._quiet_since_t)
            if since_t is not None:
                self._date()

    def _say_quiet(self, since_t: float | None) -> None:
        self.emit(ev.LogQuiet(t=self._clock.wall(), attempt=ATTEMPT, since_t=since_t))

    # -- verdicts on the logs ----------------------------------------------------------------------

    def _judge(self) -> None:
        """Judge the logs during a pause or after they end. Close the attempt if the verdict shows that the job finished."""
        if self._reading is None and self._is_over():
            self._reading = LastReading(self._logs, self._clock)
        if self._reading is not None:
            verdict = self._last_verdict(self._reading)
            if verdict is not None:
                self._decide_end(verdict)
            return
        current = self._current_verdict()
        if current is None:
            now = self._clock.mono()
            if not self._judging.busy and now - self._last_news > QUIET_S and now >= self._judge_due:
                self._start_judging()
        elif self._words_decide and self._shows_end(current):
            self._reading = LastReading(self._logs, self._clock)
        elif self._words_decide and self._ends_itself and not self._is_lately_written():
            self._close_attempt(current)

    def _last_verdict(self, reading: LastReading) -> Verdict | None:
        """Return the verdict on the complete logs, or None until they have been read in full and judged."""
        current = self._current_verdict()
        if self._judging.busy or not (reading.look() and self._queue.empty()):
            return None
        if current is None:
            self._start_judging()
        return current

    def _start_judging(self, *, of_end: bool = False) -> None:
        """Start computing a verdict in a thread; a large log can take several seconds. If `of_end`, read only the log tails."""
        if not self._judging.busy:
            self._judging_of = () if of_end else self._extent()
            self._began_judging = self._clock.mono()
            self._judging.start(lambda: self._verdict(of_end=of_end))

    def _current_verdict(self) -> Verdict | None:
        """Return the latest verdict, or None if a log has been written to since. A new verdict is shown first."""
        was_busy, found = self._judging.busy, self._judging.poll()
        if was_busy and not self._judging.busy:
            # A verdict that failed in its thread also fails here, which ends the observer.
            self._receive_verdict(found if found is not None else self._verdict())
        judged = self._judged
        return judged[0] if judged is not None and judged[1] == self._extent() else None

    def _receive_verdict(self, verdict: Verdict) -> None:
        if not self._judging_of:
            self._show_end(verdict)
            self._start_judging()
            return
        self._judged = verdict, self._judging_of
        now = self._clock.mono()
        took_s = now - self._began_judging
        self._judge_due = now + (JUDGE_REST * took_s if took_s > JUDGE_CHEAP_S else 0.0)
        if self._end_shown and not verdict.shows_end:
            self._end_shown = False
            self._say_quiet(None)  # withdraws the end
        if self._reading is None or not self._reading.look():
            self._show(verdict, provisional=True)

    def _show_end(self, verdict: Verdict) -> None:
        """Journal the failure in the tail of a large log, if the tail shows it clearly."""
        if verdict.failure in NO_FAILURE or verdict.confidence < CLEAR or verdict.cause is None:
            return
        self._end_shown = True
        self.emit(ev.AttemptEnded(t=self._clock.wall(), attempt=ATTEMPT, exit_code=None))
        # The number of lines above is not counted yet.
        verdict = replace(verdict, cause=replace(verdict.cause, line=None), consequences=())
        self._show(verdict, provisional=True)

    def _shows_end(self, verdict: Verdict) -> bool:
        """Check whether the logs show that the job ended. If an earlier end was withdrawn, they must also be quiet for `LATELY_S`."""
        return verdict.shows_end and not (self._reopened and self._is_lately_written())

    def _decide_end(self, verdict: Verdict) -> None:
        """Once all logs have been read and judged, close the attempt if it has ended. Otherwise, keep it open."""
        if self._is_over() or self._target.is_copy or self._shows_end(verdict):
            if self._target.is_copy and not verdict.shows_end:
                # An unpacked log is not followed: it fell quiet, and may show no end.
                self._say_quiet(self._quiet_since_t)
            self._close_attempt(verdict)
        else:
            self._reading, self._words_decide = None, True
            self._show(verdict, provisional=True)

    def _extent(self) -> Extent:
        """Return what a verdict computed now would be based on: each log's length and the number of known exit codes."""
        found = [len(self._ranks.codes)]
        for path in self._logs.paths:
            with contextlib.suppress(OSError):
                found.append(os.stat(path).st_size)
        return tuple(found)

    def _verdict(self, *, of_end: bool = False) -> Verdict:
        """Diagnose the current logs. If all watched processes exited with code 0, use the codes and the job's progress too."""
        engine = self._engine.get()
        if of_end:
            logs = tuple(LogSource(log.name, end_of(log), log.origin) for log in self._target.logs)
            return _of_told_rank(examine(JobEvidence(logs=logs), engine.signatures, engine.matcher))
        try:
            job = self._read()
            view, codes = self.state.attempt, self._ranks.codes
            all_seen = bool(codes) and len(codes) == len(self._target.processes)
            if view is not None and all_seen and not any(codes.values()):
                job = with_journal_facts(job._replace(launcher_exit=0), [(self.state, view)])
                job = job._replace(is_code_own=True)
            return _of_told_rank(examine(job, engine.signatures, engine.matcher))
        except (OSError, ValueError):  # a log was removed during the watch, so there is nothing to judge
            return diagnose(JobEvidence(logs=()), engine.signatures, engine.matcher)

    def _show(self, verdict: Verdict, *, provisional: bool) -> None:
        known = self.state.attempt.verdict if self.state.attempt else None
        if not provisional or (known != verdict and verdict.failure is not FailureClass.HEALTHY):
            now = self._clock.wall()
            self.emit(ev.Diagnosed(t=now, attempt=ATTEMPT, verdict=verdict, provisional=provisional))

    # -- the end -----------------------------------------------------------------------------------

    def _is_gone(self) -> bool:
        return self._is_over() or self._target.ended

    def _is_over(self) -> bool:
        """Check whether the observer saw the pipe close, the processes exit, or the logs' writers exit."""
        if self._pipe is not None:
            return self._pipe.ended
        if self._target.processes:
            return not any(is_alive(process) for _, process in self._target.processes)
        return self._writers.gone

    def _close_attempt(self, verdict: Verdict) -> None:
        """Journal that the target has ended and why. If some logs are unread, the reason is unknown."""
        self._recorder.flush()
        self._cut = self._cut or self._unread(done=True)
        self._look_at_files()  # growth that the verdict already covers must not reopen the job
        verdict = _unknown(self._cut) if self._cut else verdict
        self._closed, self._reading = (verdict, self._clock.mono()), None
        backlog, attempt = self._logs.backlog(), self.state.attempt
        if attempt is None or attempt.ended_t is None or backlog.unread_bytes:
            self.emit(
                ev.AttemptEnded(
                    t=self._clock.wall(),
                    attempt=ATTEMPT,
                    exit_code=None,
                    last_step=attempt.last_step if attempt is not None else None,
                    log_read_bytes=backlog.read_bytes if backlog.unread_bytes else None,
                    log_size_bytes=backlog.size_bytes if backlog.unread_bytes else None,
                )
            )
        self._date()
        self._show(verdict, provisional=False)

    def _unread(self, *, done: bool) -> str:
        """Describe the unread part of the logs, or return "" if there is none. `done` says whether the last read finished."""
        if self._pipe is not None and self._pipe.torn:
            return "its pipe was not read to its end"
        backlog = self._logs.backlog()
        if backlog.unread_bytes and (self._is_gone() or not done):
            return read_to(backlog.read_bytes, backlog.size_bytes)
        return "" if done else "its log was not read to its end"

    def _end(self) -> None:
        """Give the final verdict and the outcome once the job has ended or `leave` was called."""
        verdict = self._closed[0] if self._closed is not None else self._leave_off()
        if self._cut:
            gone, left = f"{self._cut}: how it ended is not known", f"no longer watched; {self._cut}"
            outcome, code, reason = ev.Outcome.LOST, EXIT_LOST, gone if self._is_gone() else left
        elif verdict is not None and verdict.reason is Reason.ENDED_EARLY:
            outcome, code, reason = ev.Outcome.FAILED, EXIT_ENDED_EARLY, verdict.title
        elif verdict is not None and verdict.failure not in {FailureClass.HEALTHY, FailureClass.UNKNOWN}:
            outcome, code, reason = ev.Outcome.FAILED, EXIT_FAILED, verdict.title
        elif verdict is not None and verdict.shows_end:
            outcome, code, reason = ev.Outcome.SUCCEEDED, 0, "the log reports the end of the job"
        elif self._is_gone():
            outcome, code, reason = self._end_of_processes()
        else:
            outcome, code, reason = ev.Outcome.STOPPED, 0, "no longer watched"
        self.emit(ev.RunEnded(t=self._clock.wall(), outcome=outcome, exit_code=code, reason=reason))

    def _end_of_processes(self) -> tuple[ev.Outcome, int, str]:
        """Return the outcome of a job whose logs do not show it, using the exit codes of watched processes if they were seen."""
        codes, processes = self._ranks.codes, self._target.processes
        if failed := next(filter(None, codes.values()), 0):
            return ev.Outcome.FAILED, EXIT_FAILED, f"exit code {failed} of a watched process"
        if processes and len(codes) == len(processes):
            return ev.Outcome.SUCCEEDED, 0, "the watched processes ended with exit code 0"
        # No failure was seen, so the code is 0. No end was seen either, so this is not a success.
        how = "the watched job ended; how cannot be seen" if processes else "no line says how the job ended"
        return ev.Outcome.LOST, 0, how

    def _leave_off(self) -> Verdict | None:
        """Judge what can be read in the time left after `leave`, and report the rest as unread."""
        reading = self._reading = self._reading or LastReading(self._logs, self._clock)
        reading.hurry()
        verdict, deadline = None, self._clock.mono() + self._patience_s
        while verdict is None and self._clock.mono() < deadline and not self._hurried:
            self._take(ENDING_TICK_S)
            self._recorder.tick()
            verdict = self._last_verdict(reading)
        done, gone = verdict is not None or reading.look(), self._is_gone()
        self._stop.set()
        self._logs.close()
        while not self._queue.empty():
            self._take(0.0)
        unjudged = "it was left before it was judged" if gone and not verdict else ""
        self._cut = self._cut or self._unread(done=done) or unjudged
        if self._cut:
            verdict = _unknown(self._cut)
        if gone and verdict is not None:
            self._close_attempt(verdict)
        elif verdict is not None:
            self._recorder.flush()
            self._show(verdict, provisional=True)
        return verdict


def _rank_of(origin: Origin) -> int | None:
    """Return the key for a log's samples: its rank or, failing that, the number in its file name (a rank or a node)."""
    known = (n for n in (origin.rank, origin.local_rank, origin.task) if n is not None)
    return next(known, None)


def _unknown(unread: str) -> Verdict:
    """Return the verdict on a log that was not read to the end. The unread part may contain anything."""
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


def _of_told_rank(found: Examination) -> Verdict:
    """Return the verdict, but without its rank if that rank is only assumed."""
    is_told = is_rank_told(found.facts, found.decision.root)
    return found.verdict if is_told else replace(found.verdict, rank=None)
