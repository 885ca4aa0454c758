"""A run's condition as a glyph, a word and a colour: the same wherever it is shown (pure)."""

from __future__ import annotations

from typing import assert_never

from supervisor.run import state as st
from supervisor.run.events import Outcome
from supervisor.run.records import FailureClass
from supervisor.views import format as fm
from supervisor.views.model.snapshot import Snapshot
from supervisor.views.tui.widgets.paint import Span, TextStyle
from supervisor.views.wording.kinds import end_of_request


def condition_span(snapshot: Snapshot, now: float) -> Span:
    """Glyph and word of the run's state."""
    condition = snapshot.state.condition
    attempt = snapshot.state.attempt
    requested = end_of_request(attempt) if attempt is not None else ""
    match condition:
        case st.Preflight():
            return Span("○ preflight", TextStyle.PLAIN)
        case st.Launching():
            return Span("○ launching", TextStyle.LIVE)
        case st.Running() if (left_s := hang_ends_in(snapshot, now)) is not None:
            return Span(f"⚠ hang: ending in {left_s:.0f} s", TextStyle.BAD)
        case st.Running() if is_stalled(snapshot):
            return Span("⚠ stalled", TextStyle.WARN)
        case st.Running():
            # Without a keeper nobody knows: what is shown is the last that one wrote.
            known = snapshot.keeper_alive
            return Span(
                f"{'●' if known else '?'} {condition.phase}", TextStyle.LIVE if known else TextStyle.WARN
            )
        case st.Stopping():
            return Span(f"◆ stopping{f' ({condition.step})' if condition.step else ''}", TextStyle.WARN)
        case st.Ended():
            return Span("◆ ended, reading its logs", TextStyle.WARN)
        case st.DiagnosedAs() if requested:
            return Span(f"■ {requested}", TextStyle.PLAIN)
        case st.DiagnosedAs():
            healthy = condition.verdict.failure is FailureClass.HEALTHY
            return Span(
                "✓ done" if healthy else f"✗ {condition.verdict.failure}",
                TextStyle.LIVE if healthy else TextStyle.BAD,
            )
        case st.Backoff():
            return Span(f"↻ restarts in {fm.duration(max(0.0, condition.until - now))}", TextStyle.WARN)
        case st.HeldOpen():
            return Span("‖ held: you decide", TextStyle.WARN)
        case st.Finished(outcome=Outcome.STOPPED) if requested:
            return Span(f"■ {requested}", TextStyle.PLAIN)
        case st.Finished():
            return outcome_span(condition.outcome)
        case _ as unreachable:
            assert_never(unreachable)


def is_stalled(snapshot: Snapshot) -> bool:
    """Whether a keeper flagged that nothing moves, and looks on."""
    attempt = snapshot.state.attempt
    return snapshot.keeper_alive and attempt is not None and attempt.stall is not None


def hang_ends_in(snapshot: Snapshot, now: float) -> float | None:
    """Seconds until the attempt is ended as a hang; None: that is not about to be done."""
    attempt = snapshot.state.attempt
    if not snapshot.keeper_alive or attempt is None or attempt.countdown is None:
        return None
    return max(0.0, attempt.countdown.until - now)


def outcome_span(outcome: Outcome) -> Span:
    """Glyph and word of how a run ended."""
    match outcome:
        case Outcome.SUCCEEDED:
            return Span("✓ succeeded", TextStyle.LIVE)
        case Outcome.STOPPED:
            return Span("■ stopped", TextStyle.PLAIN)
        case Outcome.FAILED:
            return Span("✗ failed", TextStyle.BAD)
        case Outcome.GAVE_UP:
            return Span("✗ gave up", TextStyle.BAD)
        case Outcome.LOST:
            return Span("? lost", TextStyle.BAD)
        case Outcome.REFUSED:
            return Span("✗ refused", TextStyle.BAD)
        case _ as unreachable:
            assert_never(unreachable)


def is_live(snapshot: Snapshot) -> bool:
    """Whether there is still something that leaving leaves running or held."""
    return not snapshot.state.is_over and not snapshot.gone


def leave_word(snapshot: Snapshot) -> str:
    """What leaving does, and what it does not end."""
    if not is_live(snapshot) or not snapshot.keeper_alive or snapshot.state.mode == "observed":
        return "leave"
    match snapshot.state.condition:
        case st.HeldOpen():
            return "leave (stays held)"
        case st.Backoff():
            return "leave (it restarts by itself)"
        case st.Running() | st.Launching():
            return "leave (training goes on)"
        case _:
            return "leave (the run goes on)"


def shows_failure(snapshot: Snapshot) -> bool:
    """Whether the failure card takes the place of the charts: an attempt failed and no new one runs."""
    attempt = snapshot.state.attempt
    if attempt is None or attempt.failure is None:
        return False
    condition = snapshot.state.condition
    match condition:
        case st.Ended() | st.DiagnosedAs() | st.Backoff() | st.HeldOpen():
            return True
        case st.Finished():
            return condition.outcome in {Outcome.FAILED, Outcome.GAVE_UP, Outcome.LOST}
        case _:
            return False


def failures(state: st.RunState) -> list[st.AttemptState]:
    """The attempts that failed, oldest first; what a person ended is none of them."""
    return [attempt for attempt in state.attempts if attempt.failure is not None]
