"""Decides whether a user's request is valid and makes the run's keeper carry it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from supervisor.keeper.base.control_input import require
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.control import Request
from supervisor.run.events import RequestKind

if TYPE_CHECKING:
    from supervisor.keeper.loop import Keeper


def carry_out(keeper: Keeper, request: Request, by: str) -> None:
    """Make the keeper carry out a request from `by`.

    Raises:
        Refused: the request is not valid in the current condition (see `require`).
    """
    state, condition = keeper.state, keeper.state.condition
    match request.kind:
        case RequestKind.PROFILE:
            require(isinstance(condition, st.Running), "nothing runs")
            keeper.monitor.profile()
        case RequestKind.KEEP_WAITING:
            if isinstance(condition, st.HeldOpen) and condition.until is not None:
                keeper.hold(condition.reason)
                return
            ends = state.attempt is not None and state.attempt.countdown is not None
            refusal = "neither a hang nor a run that waits for you is about to be ended"
            require(isinstance(condition, st.Running) and ends, refusal)
            keeper.monitor.keep_waiting(by)
        case RequestKind.ANSWER:
            keeper.answer(request.args.answer or "", by)
        case RequestKind.STOP | RequestKind.STOP_NOW:
            require(not isinstance(condition, st.Finished), "the run is over")
            if isinstance(condition, st.Launching | st.Running | st.Stopping):
                keeper.stop(ev.StopWhy.REQUEST, by, now=request.kind is RequestKind.STOP_NOW)
            else:
                keeper.end_stopped(by)
        case RequestKind.RESTART | RequestKind.RESTART_WITH:
            lives = isinstance(condition, st.Launching | st.Running)
            require(not isinstance(condition, st.Stopping), "it is stopping: ask again when it has ended")
            over = "the run is over: start it again with `stoker run`"
            require(not isinstance(condition, st.Finished), over)
            between = isinstance(condition, st.Backoff | st.HeldOpen | st.Ended)
            require(lives or between, "a decision is being made: ask again")
            keeper.restart(request.args, by, stop_first=lives)
        case RequestKind.START_NOW:
            require(isinstance(condition, st.Backoff | st.Ended), "no restart is waiting")
            keeper.start_now()
        case RequestKind.HOLD:
            require(isinstance(condition, st.Backoff), "no restart is waiting")
            keeper.hold(f"{by} stopped the restart")
        case RequestKind.NOTE | RequestKind.STACKS:
            return  # every keeper answers these requests, in `control_input`
        case _ as unreachable:
            assert_never(unreachable)
