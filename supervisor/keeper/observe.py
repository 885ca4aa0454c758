"""An observer: a keeper without a child. It watches what somebody else started and writes an observed run.

The directory, the journal and the series are those of any run, so every view opens it; requests other
than notes and stacks are refused, because nothing here may be stopped or restarted by us.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

from supervisor import __version__
from supervisor.keeper.clock import Clock, SystemClock
from supervisor.keeper.copies import PipeCopy, Unpacking
from supervisor.keeper.engine import EngineLoader
from supervisor.keeper.judgement import write_stacks
from supervisor.keeper.logwatch import LogKey, LogKind, LogWatch
from supervisor.keeper.observations import Observation
from supervisor.keeper.process import own_identity
from supervisor.keeper.recorder import Recorder
from supervisor.keeper.requests import Refused
from supervisor.keeper.sensors import Sensors
from supervisor.keeper.target import PIPE_NAME, ObservedLog, Target
from supervisor.keeper.wishes import Powerless, Wishes
from supervisor.run import events as ev
from supervisor.run.fold import fold
from supervisor.run.journal import JournalWriter
from supervisor.run.lock import KeeperLock
from supervisor.run.paths import RunPaths
from supervisor.run.records import FailureClass, Verdict
from supervisor.run.state import DiagnosedAs, RunState
from supervisor.sources.processes import ProcessId, is_alive
from supervisor.sources.signature_files import Engine
from supervisor.text.prefixes import Origin

TICK_S = 0.1
QUIET_S = 1.0
# A verdict reads the whole log: of an observer's time at most a twentieth goes into verdicts that are provisional.
JUDGE_REST = 20.0
JUDGE_CHEAP_S = 0.5
ATTEMPT = 1


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
    ) -> None:
        self._run = run
        self._node = run.node()
        self._target = target
        self._judge = judge
        self._host = host
        self._clock = clock or SystemClock()
        self._leave = threading.Event()
        self._stop = threading.Event()
        self._queue: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._engine = EngineLoader()
        for folder in (self._node.root, run.control, run.artifacts, self._node.attempt(ATTEMPT).root):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._pipe: PipeCopy | None = None
        self._unpacked: list[Unpacking] = []
        if target.pipe is not None:
            self._pipe = PipeCopy(target.pipe, self._node.attempt(ATTEMPT).root / PIPE_NAME, self._stop)
        me = own_identity()
        self._lock = KeeperLock(self._node.lock, start_time=me.start_time)
        self._journal = JournalWriter(self._node.journal)
        self._state = RunState()
        self._recorder = Recorder(self._node.series, self.emit, self._clock)
        self._wishes = Wishes(run, self, self._clock)
        self._sensors = Sensors(
            self._stop, self._queue.put, self._clock, interval_s=interval_s, disk=str(run.root)
        )
        self._logs = LogWatch(
            self._stop,
            put=self._queue.put,
            clock=self._clock,
            engine=self._engine.get,
            rank_of=lambda origin: origin.rank if origin.rank is not None else origin.local_rank,
        )
        self._last_news = self._clock.mono()
        self._judged = False
        self._judge_due = 0.0
        self._hurried = False
        self._thread = threading.Thread(target=self._observe, name="stoker-observer")

    @property
    def state(self) -> RunState:
        """The folded state."""
        return self._state

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
        self._journal.append(event, durable=durable)
        self._state = fold(self._state, event)

    def dump_stacks(self) -> str:
        """Write the stacks of the observed processes; the artifact's name."""
        if not self._target.processes:
            raise Refused("a log has no processes to look into")
        name = f"stacks-{ATTEMPT}-{int(self._clock.wall())}.txt"
        write_stacks(self._run.artifacts / name, dict(self._target.processes))
        return f"artifacts/{name}"

    # -- the thread --------------------------------------------------------------------------------

    def _begin(self) -> None:
        now, target, me = self._clock.wall(), self._target, own_identity()
        self.emit(
            ev.RunStarted(
                t=now,
                run_id=self._run.run_id,
                name=target.name,
                mode="observed",
                host=self._host,
                source=target.source,
                world_size=len(target.processes) or None,
            )
        )
        self.emit(ev.KeeperStarted(t=now, pid=me.pid, start_time=me.start_time, version=__version__))
        self.emit(ev.LaunchIntended(t=now, attempt=ATTEMPT, argv=(), reason=f"watching {target.source}"))
        first = target.processes[0][1] if target.processes else ProcessId(0, 0.0)
        self.emit(ev.AttemptStarted(t=now, attempt=ATTEMPT, pid=first.pid, start_time=first.start_time))
        for index, log in enumerate(target.logs):
            rank = log.origin.rank if log.origin.rank is not None else log.origin.local_rank
            slot = rank if rank is not None else index
            is_stderr = log.origin.stream == "stderr"
            path = self._plain(index, log)
            self.emit(
                ev.RankStarted(
                    t=now,
                    attempt=ATTEMPT,
                    local_rank=slot,
                    rank=rank,
                    stdout=None if is_stderr else path,
                    stderr=path if is_stderr else None,
                )
            )
            self._logs.follow(LogKey(log.name, LogKind.RANK, log.origin), path)
        for rank, process in target.processes:
            self._sensors.watch(str(rank), process)
            self.emit(
                ev.RankStarted(
                    t=now,
                    attempt=ATTEMPT,
                    local_rank=rank,
                    rank=rank,
                    pid=process.pid,
                    start_time=process.start_time,
                )
            )
        if self._pipe is not None:
            path = str(self._pipe.path)
            self.emit(ev.RankStarted(t=now, attempt=ATTEMPT, local_rank=0, stdout=path))
            self._logs.follow(LogKey(PIPE_NAME, LogKind.RANK, Origin()), path)
            self._pipe.start()
        self._recorder.begin(ATTEMPT)
        self._logs.start()
        self._sensors.start()

    def _plain(self, index: int, log: ObservedLog) -> str:
        """Where a log can be read as it is: itself, or its copy."""
        if not log.packed:
            return log.path
        name = os.path.basename(log.path).removesuffix(".gz")
        copy = Unpacking(log.path, self._node.attempt(ATTEMPT).root / f"{index}-{name}", self._stop)
        self._unpacked.append(copy)
        copy.start()
        return str(copy.path)

    def _observe(self) -> None:
        try:
            while not (self._leave.is_set() or self._is_over()):
                if self._take(TICK_S):
                    self._last_news, self._judged = self._clock.mono(), False
                self._recorder.tick()
                self._wishes.look()
                if not self._judged and self._clock.mono() - self._last_news > QUIET_S:
                    self._judge_quiet()
            if not self._hurried:
                self._end()
        finally:
            self._stop.set()
            for copy in self._unpacked:
                copy.join()
            if self._pipe is not None:
                self._pipe.join()
            self._logs.close()
            self._sensors.join()
            self._recorder.close()
            self._journal.close()
            self._lock.release()

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
                spoke = spoke or not hasattr(seen, "stream")
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
        if not isinstance(self._state.condition, DiagnosedAs):
            now, attempt = self._clock.wall(), self._state.attempt
            last = attempt.last_step if attempt is not None else None
            self.emit(ev.AttemptEnded(t=now, attempt=ATTEMPT, exit_code=None, last_step=last))
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
        reason = verdict.title if failed else "the watched job ended" if gone else "no longer watched"
        code = 1 if failed else 0
        self.emit(ev.RunEnded(t=self._clock.wall(), outcome=outcome, exit_code=code, reason=reason))

    def _tell(self, verdict: Verdict, *, provisional: bool) -> None:
        known = self._state.attempt.verdict if self._state.attempt else None
        if provisional and (known == verdict or verdict.failure is FailureClass.HEALTHY):
            return
        self.emit(
            ev.Diagnosed(t=self._clock.wall(), attempt=ATTEMPT, verdict=verdict, provisional=provisional)
        )
