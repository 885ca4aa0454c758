"""An observer: a keeper without a child. It watches what somebody else started and writes an observed run.

The directory, the journal and the series are those of any run, so every view opens it; requests other
than notes and stacks are refused, because nothing here may be stopped or restarted by us.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.diagnosis.hang.stack_groups import RankStack, stack_round
from supervisor.keeper.background_task import BackgroundTask
from supervisor.keeper.clock import Clock, ClockWatch, SystemClock
from supervisor.keeper.monitoring.log_monitor import LogKey, LogKind, LogWatch
from supervisor.keeper.monitoring.observations import Observation, Sampled
from supervisor.keeper.monitoring.sensors import Sensors
from supervisor.keeper.observer.log_times import span_of_logs
from supervisor.keeper.observer.spooled_input import PipeCopy, Unpacking
from supervisor.keeper.observer.start_observed import ATTEMPT, Beginning
from supervisor.keeper.observer.target import PIPE_NAME, Target
from supervisor.keeper.recording.recorder import Recorder
from supervisor.keeper.requests.control_input import ControlInput, Powerless
from supervisor.keeper.requests.request_rules import Refused
from supervisor.keeper.signature_engine import EngineLoader
from supervisor.keeper.stalls.stack_file import StackFile, write_stacks
from supervisor.run import events as ev
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass, Verdict
from supervisor.run.state import DiagnosedAs, RunState
from supervisor.sources.processes import ProcessId, is_alive
from supervisor.sources.signature_files import Engine
from supervisor.sources.stacks.python_stacks import collect_stacks
from supervisor.text.prefixes import Origin

TICK_S = 0.1
QUIET_S = 1.0
# A verdict reads the whole log: of an observer's time at most a twentieth goes into verdicts that are provisional.
JUDGE_REST = 20.0
JUDGE_CHEAP_S = 0.5


class Observer(Powerless):
    """Watches a target until it ends or `leave` is called. Judges it at its end, and whenever it falls quiet."""

    def __init__(
        self,
        run: RunPaths,
        target: Target,
        *,
        host: str,
        judge: Callable[[Engine], Verdict],
        interval_s: float = 1.0,
        clock: Clock | None = None,
        beginning: Beginning | None = None,
    ) -> None:
        self._run = run
        self._node = run.node()
        self._target = target
        self._judge = judge
        self._clock = clock or SystemClock()
        self._leave = threading.Event()
        self._stop = threading.Event()
        self._queue: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._engine = EngineLoader()
        self._pipe: PipeCopy | None = None
        self._unpacked: list[Unpacking] = []
        if target.pipe is not None:
            self._pipe = PipeCopy(target.pipe, self._node.attempt(ATTEMPT).root / PIPE_NAME, self._stop)
        self._beginning = beginning or Beginning.fresh(run, target, host=host, clock=self._clock)
        self._recorder = Recorder(self._node.series, self.emit, self._clock)
        self._wishes = ControlInput(run, self, self._clock)
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
        )
        self._last_news = self._clock.mono()
        self._judged = False
        self._judge_due = 0.0
        self._hurried = False
        self._thread = threading.Thread(target=self._observe, name="stoker-observer")

    @property
    def state(self) -> RunState:
        """The folded state."""
        return self._beginning.state

    def start(self) -> None:
        """Begin to watch, in a thread."""
        self._begin()
        self._thread.start()

    def leave(self, *, hurried: bool = False) -> None:
        """End the watching: the last verdict is given, the directory is left whole.

        `hurried`: nobody will read it; what is not read yet stays unread, and no verdict is given.
        """
        self._hurried = hurried
        self._leave.set()
        self._thread.join()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the target's own end; True once it has come."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- what wishes may do here: notes and stacks (see wishes.Actor) --------------------------------

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal and fold a fact."""
        self._beginning.emit(event, durable=durable)

    def dump_stacks(self) -> BackgroundTask[StackFile, str]:
        """Begin to write the stacks of the observed processes; the answer is the artifact's name."""
        if not self._target.processes:
            raise Refused("a log has no processes to look into")
        processes = dict(self._target.processes)
        return BackgroundTask("stoker-stacks-asked", lambda: self._take_stacks(processes), _name_of)

    def _take_stacks(self, processes: Mapping[int, ProcessId]) -> StackFile:
        stacks = dict(zip(processes, collect_stacks(list(processes.values())), strict=True))
        told = [RankStack(rank, s.source, s.lines, s.process.pid, s.main_call) for rank, s in stacks.items()]
        head = stack_round(told).text
        return write_stacks(self._run.artifacts, ATTEMPT, self._clock.wall(), head, stacks, [])

    # -- the thread --------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._target.unseen:
            now = self._clock.wall()
            self.emit(ev.Advisory(t=now, attempt=ATTEMPT, code="unseen", text=self._target.unseen))
        for index, log in enumerate(self._target.logs):
            path = self._beginning.path_of(index, log)
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
        self._recorder.begin(ATTEMPT)
        self._logs.start()
        self._sensors.start()

    def _date(self) -> None:
        """Say what the logs' own clocks tell: when somebody looks is no time of the job."""
        if not self._target.logs or self._target.processes:
            return
        if not all(copy.ended for copy in self._unpacked):
            return  # what is unpacked is dated at the end
        logs = [(log.path, self._beginning.path_of(n, log)) for n, log in enumerate(self._target.logs)]
        span, over = span_of_logs(logs), self._target.ended
        began_t, over_t = span if span is not None else (None, None)
        if began_t is not None or over:
            dated = ev.LogsDated(
                t=self._clock.wall(),
                attempt=ATTEMPT,
                began_t=began_t,
                over_t=over_t if over else None,
                over=over,
            )
            self.emit(dated)

    def _observe(self) -> None:
        try:
            while not (self._leave.is_set() or self._is_over()):
                if self._take(TICK_S):
                    self._last_news, self._judged = self._clock.mono(), False
                self._recorder.tick()
                self._clock_watch.look()
                self._wishes.look()
                if not self._judged and self._clock.mono() - self._last_news > QUIET_S:
                    self._judge_quiet()
            if not self._hurried:
                self._end()
            self._wishes.close()
        finally:
            self._stop.set()
            for copy in self._unpacked:
                copy.join()
            if self._pipe is not None:
                self._pipe.join()
            self._logs.close()
            self._sensors.join()
            self._recorder.close()
            self._beginning.journal.close()
            self._beginning.lock.release()

    def _judge_quiet(self) -> None:
        """The logs have fallen quiet: what do they say? Of a file of gigabytes not at every pause."""
        if self._clock.mono() < self._judge_due or not all(copy.ended for copy in self._unpacked):
            return
        self._judged = True
        if self._target.ended:
            self._close_attempt()
            return
        engine = self._engine.get()
        began = time.thread_time()
        self._tell(self._judge(engine), provisional=True)
        spent_s = time.thread_time() - began
        self._judge_due = self._clock.mono() + (JUDGE_REST * spent_s if spent_s > JUDGE_CHEAP_S else 0.0)

    def _take(self, timeout_s: float) -> bool:
        """Record what came; whether a log said something."""
        spoke = False
        try:
            seen = self._queue.get(timeout=timeout_s)
            while True:
                spoke = spoke or not isinstance(seen, Sampled)
                self._recorder.record(ATTEMPT, seen)
                seen = self._queue.get_nowait()
        except queue.Empty:
            return spoke

    def _is_over(self) -> bool:
        if self._pipe is not None:
            return self._pipe.ended
        if self._target.processes:
            return not any(is_alive(process) for _, process in self._target.processes)
        return False

    def _close_attempt(self) -> Verdict:
        """The target is over: say so, and why."""
        self._logs.drain()
        self._take(0.0)
        self._recorder.flush()
        verdict = self._judge(self._engine.get())
        if not isinstance(self.state.condition, DiagnosedAs):
            now, attempt = self._clock.wall(), self.state.attempt
            last = attempt.last_step if attempt is not None else None
            self.emit(ev.AttemptEnded(t=now, attempt=ATTEMPT, exit_code=None, last_step=last))
            self._date()
            self._tell(verdict, provisional=False)
        return verdict

    def _end(self) -> None:
        gone = self._is_over() or self._target.ended
        if gone:
            verdict = self._close_attempt()
        else:
            self._logs.drain()
            self._take(0.0)
            self._recorder.flush()
            verdict = self._judge(self._engine.get())
            self._tell(verdict, provisional=True)
        failed = verdict.failure not in {FailureClass.HEALTHY, FailureClass.UNKNOWN}
        outcome = ev.Outcome.FAILED if failed else ev.Outcome.SUCCEEDED if gone else ev.Outcome.STOPPED
        ended = (
            "the watched job ended; how cannot be seen" if self._target.unseen else "the watched job ended"
        )
        reason = verdict.title if failed else ended if gone else "no longer watched"
        code = 1 if failed else 0
        self.emit(ev.RunEnded(t=self._clock.wall(), outcome=outcome, exit_code=code, reason=reason))

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
    """What a log's samples are told apart by: a rank, else the number of its file (a rank or a node)."""
    known = (n for n in (origin.rank, origin.local_rank, origin.task) if n is not None)
    return next(known, None)
