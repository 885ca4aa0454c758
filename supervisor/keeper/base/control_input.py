"""Signals and requests: what people and schedulers ask of a keeper, when that is valid, and how the keeper answers.

A signal handler only queues a number; a request is a file. The keeper's only thread reads both and is the only one to act.
Every request is answered by an event.
"""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Callable
from typing import Any, Protocol, assert_never

from supervisor.keeper.base.background import BackgroundTask
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import RequestKind
from supervisor.run.paths import RunPaths

NOT_OURS = "stoker did not start this job: it only watches"
CONTROL_INTERVAL_S = 0.2
LAST_ANSWER_S = 2.0
"""How long a keeper that leaves waits for what it is still asked: of ended ranks there is soon nothing more to see."""


class Refused(Exception):  # noqa: N818 - a state of affairs, not an error
    """The request is not valid now; gives the reason in a few words."""


class Watcher(Protocol):
    """What a request can make any keeper do, including one that only watches."""

    @property
    def state(self) -> st.RunState:
        """The folded state."""

    def emit(self, event: ev.Event, *, durable: bool = False) -> None:
        """Journal and fold an event."""

    def dump_stacks(self) -> BackgroundTask[Any, str]:
        """Start writing the stacks of all ranks; returns the artifact's name."""


class Actor(Protocol):
    """What a request can make a keeper do with the job that it started."""

    def stop(self, why: ev.StopWhy, by: str, *, now: bool = False) -> None:
        """End the attempt, or the run between attempts."""

    def end_stopped(self, by: str) -> None:
        """End a run that has no live attempt."""

    def restart(self, args: control.RequestArgs, by: str, *, stop_first: bool) -> None:
        """Relaunch with the changes in `args`; raises BadChange if that is impossible."""

    def start_now(self) -> None:
        """End a back-off early."""

    def hold(self, reason: str) -> None:
        """Turn a back-off into a hold."""

    def profile(self) -> None:
        """Ask the trainer for a trace of its next steps."""

    def keep_waiting(self, by: str) -> None:
        """Do not end the current silence."""

    def answer(self, value: str, by: str) -> None:
        """Take a person's answer about the batch and decide again."""


class ControlInput:
    """Polls signals and control/ and makes a keeper act.

    `actor`: the keeper, if it may act; None if it only watches. `answers`: whether this keeper answers
    requests, rather than another node's.
    """

    def __init__(
        self, run: RunPaths, keeper: Watcher, clock: Clock, *, actor: Actor | None, answers: bool = True
    ) -> None:
        self._answers = answers
        self._run = run
        self._keeper, self._actor = keeper, actor
        self._clock = clock
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._next_look = 0.0
        self._tasks: dict[str, tuple[control.Request, BackgroundTask[Any, str]]] = {}
        self.interrupts = 0

    def install_signal_handlers(self) -> Callable[[], None]:
        """SIGINT, SIGTERM, SIGUSR1 are queued; SIGHUP never ends a keeper. Returns the undo."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        before = {number: signal.signal(number, lambda n, _f: self._signals.put(n)) for number in numbers}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)

        def undo() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return undo

    def look(self) -> None:
        """Process what arrived since the last call."""
        while not self._signals.empty():
            number = signal.Signals(self._signals.get())
            self.interrupts += number is signal.SIGINT
            why = ev.StopWhy.REQUEUE if number is signal.SIGUSR1 else ev.StopWhy.SIGNAL
            by = ev.CTRL_C if number is signal.SIGINT else number.name
            if self._actor is not None:
                self._actor.stop(why, by, now=self.interrupts >= 2)
        now = self._clock.mono()
        if self._answers and now >= self._next_look:
            self._next_look = now + CONTROL_INTERVAL_S
            for request in control.pending(self._run.control):
                # Already answered: its keeper died before it could remove the file.
                if request.id not in self._keeper.state.answered and request.id not in self._tasks:
                    self._answer(request)
                self._take_away(request.id)
        for request, task in list(self._tasks.values()):
            if not task.working:
                self._finish(request, task)

    def refuse_waiting(self, reason: str) -> None:
        """Refuse all requests already in control/: they may no longer be wanted."""
        for request in control.pending(self._run.control):
            if isinstance(request, control.Request):
                if request.id not in self._keeper.state.answered:
                    self._refuse(request, reason)
                self._take_away(request.id)

    def close(self) -> None:
        """Answer any remaining requests before the keeper exits."""
        for request, task in list(self._tasks.values()):
            task.close(LAST_ANSWER_S)
            self._finish(request, task)

    def _take_away(self, request_id: str) -> None:
        """Remove answered requests. Unanswered ones stay for a keeper that may adopt the run."""
        if request_id not in self._tasks:
            with contextlib.suppress(OSError):
                control.remove(self._run.control, request_id)

    def _answer(self, request: control.Request | control.BadRequest) -> None:
        if isinstance(request, control.BadRequest):
            self._refuse(request, request.reason)
            return
        try:
            task = self._carry_out(request)
        except (Refused, OSError) as refused:
            self._refuse(request, str(refused))
            return
        if task is not None:
            self._tasks[request.id] = (request, task)
        else:
            self._done(request)

    def _finish(self, request: control.Request, task: BackgroundTask[Any, str]) -> None:
        """Answer the request whose background work is done or will not finish."""
        del self._tasks[request.id]
        try:
            answer = task.poll()
        except OSError as error:
            self._refuse(request, str(error))
        else:
            if answer is None:
                self._refuse(request, "the supervisor process left before it was done")
            else:
                self._done(request, answer)
        self._take_away(request.id)

    def _done(self, request: control.Request, detail: str = "") -> None:
        now, by = self._clock.wall(), _who(request)
        done = ev.RequestDone(t=now, request_id=request.id, request=request.kind, by=by, detail=detail)
        self._keeper.emit(done)

    def _refuse(self, request: control.Request | control.BadRequest, reason: str) -> None:
        kind, by = "?", "?"
        if isinstance(request, control.Request):
            kind, by = request.kind, _who(request)
        t = self._clock.wall()
        self._keeper.emit(ev.RequestRefused(t=t, request_id=request.id, request=kind, by=by, reason=reason))

    def _carry_out(self, request: control.Request) -> BackgroundTask[Any, str] | None:
        """Carry out a request; returns a task if it takes a while.

        Raises:
            Refused: it is stale, or not valid in this condition.
        """
        actor, state, by = self._actor, self._keeper.state, _who(request)
        condition = state.condition
        current = state.attempt.number if state.attempt else 0
        _require(request.if_attempt in {None, current}, "stale")
        if request.kind is RequestKind.NOTE:
            _require(bool(request.args.text), "a note without text")
            text = (request.args.text or "")[:500]
            self._keeper.emit(ev.NoteAdded(t=self._clock.wall(), text=text, by=by))
            return None
        if request.kind is RequestKind.STACKS:
            _require(isinstance(condition, st.Running | st.Stopping), "nothing runs")
            return self._keeper.dump_stacks()
        if actor is None:
            raise Refused(NOT_OURS)
        match request.kind:
            case RequestKind.PROFILE:
                _require(isinstance(condition, st.Running), "nothing runs")
                actor.profile()
            case RequestKind.KEEP_WAITING:
                is_held = isinstance(condition, st.HeldOpen) and condition.until is not None
                ends = state.attempt is not None and state.attempt.countdown is not None
                if isinstance(condition, st.HeldOpen) and is_held:
                    actor.hold(condition.reason)
                elif isinstance(condition, st.Running) and ends:
                    actor.keep_waiting(by)
                else:
                    raise Refused("neither a hang nor a run that waits for you is about to be ended")
            case RequestKind.ANSWER:
                question = state.open_question
                if question is None:
                    raise Refused("there is no open question")
                known = request.args.answer in {answer.value for answer in question.answers}
                _require(known, "that is no answer to what is asked")
                actor.answer(request.args.answer or "", by)
            case RequestKind.STOP | RequestKind.STOP_NOW:
                _require(not isinstance(condition, st.Finished), "the run is over")
                if isinstance(condition, st.Launching | st.Running | st.Stopping):
                    actor.stop(ev.StopWhy.REQUEST, by, now=request.kind is RequestKind.STOP_NOW)
                else:
                    actor.end_stopped(by)
            case RequestKind.RESTART | RequestKind.RESTART_WITH:
                lives = isinstance(condition, st.Launching | st.Running)
                if not lives and not isinstance(condition, st.Backoff | st.HeldOpen | st.Ended):
                    reason = "a decision is being made: ask again"
                    if isinstance(condition, st.Stopping):
                        reason = "it is stopping: ask again when it has ended"
                    elif isinstance(condition, st.Finished):
                        reason = "the run is over: start it again with `stoker run`"
                    raise Refused(reason)
                actor.restart(request.args, by, stop_first=lives)
            case RequestKind.START_NOW:
                _require(isinstance(condition, st.Backoff | st.Ended), "no restart is waiting")
                actor.start_now()
            case RequestKind.HOLD:
                _require(isinstance(condition, st.Backoff), "no restart is waiting")
                actor.hold(f"{by} stopped the restart")
            case _ as unreachable:
                assert_never(unreachable)
        return None


def _require(holds: bool, refusal: str) -> None:
    if not holds:
        raise Refused(refusal)


def _who(request: control.Request) -> str:
    return request.by.user or f"uid {request.by.uid}"
