"""The words of the timeline for how attempts begin and end: each thing is said once, and a wish is no failure (pure)."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from msgspec.structs import replace

from supervisor.job.batch import describe_change
from supervisor.run import events as ev
from supervisor.run import state as st
from supervisor.run.records import DecisionKind, FailureClass, Sameness, SpecChange

POLICY = "policy"
"""`events.Decided.by` of what no person decided."""

Said: TypeAlias = tuple[str, str]
"""Tone (see `state.Mark`) and text."""

_WHY = {
    ev.StopWhy.SIGNAL: "signalled",
    ev.StopWhy.RANK_DIED: "a rank died",
    ev.StopWhy.REQUEUE: "to be requeued",
    ev.StopWhy.HANG: "hang",
}
_SAID_BY_THE_NEXT = {DecisionKind.HOLD, DecisionKind.SUCCEED, DecisionKind.FAIL, DecisionKind.GIVE_UP}
"""Decisions that the hold, or the run's end, follows at once with the same reason."""
_SAMENESS = {
    Sameness.SAME: "good",
    Sameness.SAME_WITHIN_NOISE: "good",
    Sameness.DIFFERS: "bad",
    Sameness.UNKNOWN: "info",
}
_MOST_LEFT = 5
_OUTCOMES = {ev.Outcome.SUCCEEDED: "good", ev.Outcome.STOPPED: "info"}


def mark(s: st.RunState, t: float, tone: str, text: str, step: int | None = None) -> st.RunState:
    """The state with one more point on its timeline."""
    number = s.attempts[-1].number if s.attempts else None
    point = st.Mark(t=t, attempt=number, tone=tone, text=text, step=step)
    return replace(s, timeline=(*s.timeline, point)[-st.MAX_TIMELINE :])


def said(s: st.RunState, t: float, words: Said | None) -> st.RunState:
    """The same where there is something to say."""
    return s if words is None else mark(s, t, *words)


def launching(event: ev.LaunchIntended, before: st.AttemptView | None) -> Said:
    """A launch, after `before`. Who asked for it stands right above."""
    wished = before is not None and before.decision is not None and before.decided_by not in {"", POLICY}
    return "info", f"attempt {event.attempt}: {'as asked' if wished else event.reason}"


def stopping(event: ev.StopIntended) -> Said | None:
    """The end that we begin; a request that asked for it has a line of its own."""
    if event.why not in _WHY:
        return None
    by = f" (by {event.by})" if event.by else ""
    tone = "info" if event.why in st.WISHES else "warn"
    return tone, f"stopping: {_WHY[event.why]}{by}"


def ended(event: ev.AttemptEnded, attempt: st.AttemptView | None) -> Said:
    """The end, whose it was or how it came, and how far its logs were read if that was not all."""
    unread, code = event.unread_text, event.exit_code
    said = f"attempt {event.attempt} ended, {unread}" if unread else f"attempt {event.attempt} ended"
    if attempt is not None and attempt.wish_text:
        return "info", f"{said}: {attempt.wish_text}"
    if code is None:
        return "warn" if unread else "info", said  # nobody could see how
    said = f"attempt {event.attempt} ended, exit {code}"
    if unread:
        return "bad" if code else "warn", f"{said}, {unread}"
    return "bad" if code else "good", said


def left(event: ev.ProcessesLeft) -> str:
    """Which processes live on, and why nobody ended them."""
    names = ", ".join(f"{one.pid} {one.command}".rstrip() for one in event.processes[:_MOST_LEFT])
    names += ", …" if len(event.processes) > _MOST_LEFT else ""
    match event.why:
        case ev.LeftWhy.AFTER_SUCCESS:
            return f"left running after exit 0: {names}"
        case ev.LeftWhy.NESTED:
            return f"left alone, of a stoker run within the job: {names}"
        case ev.LeftWhy.UNKNOWN:
            return f"left alone, not known to be of this run: {names}"
        case _ as unreachable:
            assert_never(unreachable)


def judged(event: ev.Diagnosed, attempt: st.AttemptView | None) -> Said | None:
    """A failure's headline."""
    wished = attempt is not None and attempt.ended_by_wish
    if event.verdict.failure is FailureClass.HEALTHY or wished:
        return None
    return "bad", f"verdict: {event.verdict.title}"


def decided(event: ev.Decided, attempt: st.AttemptView | None) -> Said | None:
    """What policy settled on, once: a person's wish stands there as a request, and a stop as the attempt's end."""
    decision = event.decision
    if event.by != POLICY or decision.kind in _SAID_BY_THE_NEXT:
        return None
    if attempt is not None:
        again = attempt.decision is not None and attempt.decision.reason == decision.reason
        if again or (decision.kind is DecisionKind.STOP and attempt.ended_by_wish):
            return None
    tone = "good" if decision.kind in {DecisionKind.SUCCEED, DecisionKind.RESTART} else "warn"
    return tone, f"{decision.kind.replace('_', ' ')}: {decision.reason}"


def recovered(event: ev.Recovered, before: st.AttemptView | None) -> Said:
    """The first step after an end."""
    if before is not None and before.ended_by_wish:
        return "info", f"the next step came {event.total_s:.1f} s after the stop"
    return "good", f"the next step came {event.total_s:.1f} s after the failure"


def compared(event: ev.ResumeCompared) -> Said:
    """Whether a resumed attempt goes on with the same training."""
    return _SAMENESS[event.result], f"attempt {event.attempt}: {event.headline}: {event.text}"


def asked(event: ev.RequestDone, attempt: st.AttemptView | None) -> Said:
    """A person's request; of a restart also what it changes."""
    wish = event.request.replace("_", " ")
    decision = attempt.decision if attempt is not None and attempt.decided_by == event.by else None
    if event.request in {ev.RequestKind.RESTART, ev.RequestKind.RESTART_WITH}:
        wish = "restart"
        if decision is not None and decision.kind is DecisionKind.RESTART and decision.change is not None:
            changed = changed_words(decision.change)
            if changed:
                return "info", f"{event.by} asked: restart with {changed}"
    return "info", f"{event.by} asked: {wish}"


def changed_words(change: SpecChange) -> str:
    """What a change makes different, in one line; empty where nothing is."""
    parts = describe_change(change.batch).split(", ") if change.batch is not None else []
    parts = [part for part in parts if not part.endswith(" unchanged")]
    parts += [f"{name}={value}" for name, value in change.env]
    parts += [f"{name} {value}" for name, value in change.set_args]
    parts += ["other arguments"] if change.argv is not None else []
    return ", ".join(parts)


def over(event: ev.RunEnded) -> Said:
    """The outcome."""
    return _OUTCOMES.get(event.outcome, "bad"), f"{event.outcome.replace('_', ' ')}: {event.reason}"
