"""Reads the signals and requests that users and schedulers send to a keeper, and answers them.

Signal handlers only queue a number, and requests are files. Only the keeper's single thread reads both and acts on them.
Every request is answered by an event.
"""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Callable
from typing import Any, TypeAlias

from supervisor.keeper.base.background import BackgroundTask
from supervisor.keeper.base.keeper_clock import Clock
from supervisor.keeper.base.ledger import Ledger
from supervisor.run import control
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.events import RequestKind
from supervisor.run.paths import RunPaths

Task: TypeAlias = BackgroundTask[Any, str]
NOT_OURS = "stoker did not start this job: it only watches"
CONTROL_INTERVAL_S = 0.2
LAST_ANSWER_S = 2.0
"""Seconds an exiting keeper waits for open requests. Once ranks have exited, there is soon nothing left to inspect."""


class Refused(Exception):  # noqa: N818 - a state of affairs, not an error
    """The request is not valid at this time. The message briefly says why."""


class ControlInput:
    """Polls signals and control/ and makes a keeper act on them.

    Args:
        dump_stacks: starts dumping the stacks of all ranks; the answer is the artifact's name.
        carry_out: carries out any other user request or raises Refused; None if this keeper only watches.
        stop: stops the attempt because of a signal, immediately if the last argument is true.
        answers: whether this keeper, rather than another node's, answers requests.
    """

    def __init__(
        self,
        run: RunPaths,
        ledger: Ledger,
        clock: Clock,
        *,
        dump_stacks: Callable[[], Task],
        carry_out: Callable[[control.Request, str], None] | None = None,
        stop: Callable[[ev.StopWhy, str, bool], None] = lambda *_: None,
        answers: bool = True,
    ) -> None:
        self._folder, self._ledger, self._clock, self._answers = run.control, ledger, clock, answers
        self._dump_stacks, self._carry_out, self._stop = dump_stacks, carry_out, stop
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._next_look = 0.0
        self._tasks: dict[str, tuple[control.Request, Task]] = {}
        self.interrupts = 0

    def install_signal_handlers(self) -> Callable[[], None]:
        """Queue SIGINT, SIGTERM and SIGUSR1 and ignore SIGHUP. Return a function that undoes this."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        before = {number: signal.signal(number, lambda n, _f: self._signals.put(n)) for number in numbers}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)

        def undo() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return undo

    def look(self) -> None:
        """Process whatever arrived since the last call."""
        while not self._signals.empty():
            number = signal.Signals(self._signals.get())
            self.interrupts += number is signal.SIGINT
            why = ev.StopWhy.REQUEUE if number is signal.SIGUSR1 else ev.StopWhy.SIGNAL
            by = ev.CTRL_C if number is signal.SIGINT else number.name
            self._stop(why, by, self.interrupts >= 2)
        now = self._clock.mono()
        if self._answers and now >= self._next_look:
            self._next_look = now + CONTROL_INTERVAL_S
            for request in control.pending(self._folder):
                # A request may be answered already if its keeper died before removing the file.
                if request.id not in self._ledger.state.answered and request.id not in self._tasks:
                    self._answer(request)
                self._take_away(request.id)
        for request, task in list(self._tasks.values()):
            if not task.working:
                self._finish(request, task)

    def refuse_waiting(self, reason: str) -> None:
        """Refuse all requests already waiting in control/, because they may no longer be wanted."""
        for request in control.pending(self._folder):
            if isinstance(request, control.Request):
                if request.id not in self._ledger.state.answered:
                    self._refuse(request, reason)
                self._take_away(request.id)

    def close(self) -> None:
        """Answer any remaining requests before the keeper exits."""
        for request, task in list(self._tasks.values()):
            task.close(LAST_ANSWER_S)
            self._finish(request, task)

    def _take_away(self, request_id: str) -> None:
        """Remove an answered request. Unanswered ones stay for a keeper that may adopt the run."""
        if request_id not in self._tasks:
            with contextlib.suppress(OSError):
                control.remove(self._folder, request_id)

    def _answer(self, request: control.Request | control.BadRequest) -> None:
        if isinstance(request, control.BadRequest):
            self._refuse(request, request.reason)
            return
        try:
            task = self._begin(request)
        except (Refused, OSError) as refused:
            self._refuse(request, str(refused))
            return
        if task is not None:
            self._tasks[request.id] = (request, task)
        else:
            self._done(request)

    def _begin(self, request: control.Request) -> Task | None:
        """Carry out a request. Return a task if the work takes a while.

        Raises:
            Refused: the request is stale or not valid in the current state.
        """
        state = self._ledger.state
        require(request.if_attempt in {None, state.attempt.number if state.attempt else 0}, "stale")
        if request.kind is RequestKind.NOTE:
            require(bool(request.args.text), "a note without text")
            text = (request.args.text or "")[:500]
            self._ledger.emit(ev.NoteAdded(t=self._clock.wall(), text=text, by=_who(request)))
            return None
        if request.kind is RequestKind.STACKS:
            require(isinstance(state.condition, st.Running | st.Stopping), "nothing runs")
            return self._dump_stacks()
        if self._carry_out is None:
            raise Refused(NOT_OURS)
        self._carry_out(request, _who(request))
        return None

    def _finish(self, request: control.Request, task: Task) -> None:
        """Answer a request whose background work has finished or never will."""
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
        self._ledger.emit(done)

    def _refuse(self, request: control.Request | control.BadRequest, reason: str) -> None:
        kind, by = "?", "?"
        if isinstance(request, control.Request):
            kind, by = request.kind, _who(request)
        t = self._clock.wall()
        self._ledger.emit(ev.RequestRefused(t=t, request_id=request.id, request=kind, by=by, reason=reason))


def require(holds: bool, refusal: str) -> None:
    """Raise `Refused` unless the condition for a request holds."""
    if not holds:
        raise Refused(refusal)


def _who(request: control.Request) -> str:
    return request.by.user or f"uid {request.by.uid}"
