"""What each request means in each condition: allowed or refused, with the reason. Pure.

The keeper carries out what `judge` allows; every request is answered by an event.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import assert_never

from supervisor.run import state as st
from supervisor.run.control import Request
from supervisor.run.events import RequestKind

NOT_OURS = "stoker did not start this job: it only watches"


class RequestAction(Enum):
    """What the keeper does about an allowed request."""

    STOP = auto()
    STOP_NOW = auto()
    STOP_THEN_RESTART = auto()
    RESTART = auto()
    START_NOW = auto()
    HOLD = auto()
    STACKS = auto()
    PROFILE = auto()
    KEEP_WAITING = auto()
    KEEP_HOLDING = auto()
    ANSWER = auto()
    NOTE = auto()
    END = auto()


class Refused(Exception):  # noqa: N818 - a state of affairs, not an error
    """The request makes no sense now: the reason in a few words."""


def judge(request: Request, state: st.RunState) -> RequestAction:
    """What to do about `request`.

    Raises:
        Refused: it is stale, or makes no sense in this condition.
    """
    current = state.attempt.number if state.attempt else 0
    if request.if_attempt is not None and request.if_attempt != current:
        raise Refused("stale")
    if state.mode == "observed" and request.kind not in {RequestKind.NOTE, RequestKind.STACKS}:
        raise Refused(NOT_OURS)
    match request.kind:
        case RequestKind.NOTE:
            if not request.args.text:
                raise Refused("a note without text")
            return RequestAction.NOTE
        case RequestKind.STACKS:
            if not isinstance(state.condition, st.Running | st.Stopping):
                raise Refused("nothing runs")
            return RequestAction.STACKS
        case RequestKind.PROFILE:
            if not isinstance(state.condition, st.Running):
                raise Refused("nothing runs")
            return RequestAction.PROFILE
        case RequestKind.KEEP_WAITING:
            if isinstance(state.condition, st.HeldOpen) and state.condition.until is not None:
                return RequestAction.KEEP_HOLDING
            counts = state.attempt is not None and state.attempt.countdown is not None
            if not (counts and isinstance(state.condition, st.Running)):
                raise Refused("neither a hang nor a run that waits for you is about to be ended")
            return RequestAction.KEEP_WAITING
        case RequestKind.ANSWER:
            question = state.open_question
            if question is None:
                raise Refused("there is no open question")
            if request.args.answer not in {answer.value for answer in question.answers}:
                raise Refused("that is no answer to what is asked")
            return RequestAction.ANSWER
        case RequestKind.STOP | RequestKind.STOP_NOW:
            return _stop(request.kind, state.condition)
        case RequestKind.RESTART | RequestKind.RESTART_WITH:
            return _restart(state.condition)
        case RequestKind.START_NOW:
            if not isinstance(state.condition, st.Backoff | st.Ended):
                raise Refused("no restart is waiting")
            return RequestAction.START_NOW
        case RequestKind.HOLD:
            if not isinstance(state.condition, st.Backoff):
                raise Refused("no restart is waiting")
            return RequestAction.HOLD
        case _ as unreachable:
            assert_never(unreachable)


def _stop(kind: RequestKind, condition: st.Condition) -> RequestAction:
    if isinstance(condition, st.Finished):
        raise Refused("the run is over")
    if isinstance(condition, st.Backoff | st.HeldOpen | st.Preflight | st.DiagnosedAs | st.Ended):
        return RequestAction.END
    return RequestAction.STOP_NOW if kind is RequestKind.STOP_NOW else RequestAction.STOP


def _restart(condition: st.Condition) -> RequestAction:
    match condition:
        case st.Running() | st.Launching():
            return RequestAction.STOP_THEN_RESTART
        case st.Backoff() | st.HeldOpen() | st.Ended():
            return RequestAction.RESTART
        case st.Stopping():
            raise Refused("it is stopping: ask again when it has ended")
        case st.Finished():
            raise Refused("the run is over: start it again with `stoker run`")
        case st.Preflight() | st.DiagnosedAs():
            raise Refused("a decision is being made: ask again")
        case _ as unreachable:
            assert_never(unreachable)
